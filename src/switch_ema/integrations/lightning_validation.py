"""Extra validation passes in Lightning, on other weights than the trainer's own."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.data import extract_batch_size
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch import Tensor


def validate_again(trainer: Trainer, module: LightningModule) -> dict[str, float]:
    """Run the validation steps on the current weights; return the logged values.

    The module's epoch hooks run, those of callbacks do not, and nothing reaches the
    trainer's metrics.
    """
    loaders = _flat(trainer.val_dataloaders)
    several = len(loaders) > 1
    # Like Lightning, allow a validation_step that takes only the batch.
    step = module.validation_step
    counts = is_param_in_hook_signature(step, "batch_idx", min_args=2)
    with _noted(module) as notes:
        module.on_validation_epoch_start()
        for index, loader in enumerate(loaders):
            notes.end = f"/dataloader_idx_{index}" if several else ""
            limit = trainer.num_val_batches[index]
            for number, batch in enumerate(loader):
                if number >= limit:
                    break
                moved = trainer.strategy.batch_to_device(batch, dataloader_idx=index)
                notes.batch = moved
                place = (number,) * counts + (index,) * several
                trainer.strategy.validation_step(moved, *place)
        notes.batch, notes.end = None, ""
        module.on_validation_epoch_end()
        return notes.means()


class _Notes:
    """Stands in for a module's ``self.log`` and ``self.log_dict``."""

    def __init__(self) -> None:
        self.batch: Any = None
        self.end = ""
        """Suffix of metric names, if there are several loaders."""
        self._sums: dict[str, float] = defaultdict(float)
        self._weights: dict[str, float] = defaultdict(float)
        self._metrics: dict[str, Any] = {}

    def log(
        self,
        name: str,
        value: Any,
        *args: Any,
        batch_size: int | None = None,
        add_dataloader_idx: bool = True,
        **options: Any,
    ) -> None:
        """Add a value, weighted by batch size, as in Lightning."""
        name = name + (self.end if add_dataloader_idx else "")
        if hasattr(value, "compute"):  # a torchmetrics metric, which accumulates itself
            self._metrics[name] = value
            return
        if batch_size is None:
            batch_size = 1 if self.batch is None else extract_batch_size(self.batch)
        number = value.detach().float().mean() if isinstance(value, Tensor) else value
        self._sums[name] += batch_size * float(number)
        self._weights[name] += batch_size

    def log_dict(
        self, dictionary: Mapping[str, Any], *args: Any, **options: Any
    ) -> None:
        """Add several values."""
        for name, value in dictionary.items():
            self.log(name, value, *args, **options)

    def means(self) -> dict[str, float]:
        """Return the means over batches, and reset torchmetrics metrics."""
        values = {
            name: total / self._weights[name] for name, total in self._sums.items()
        }
        for name, metric in self._metrics.items():
            values[name] = float(metric.compute())
        for metric in self._metrics.values():
            metric.reset()
        return values


@contextmanager
def _noted(module: LightningModule) -> Iterator[_Notes]:
    """Redirect a module's logging into notes for a block."""
    notes = _Notes()
    own = vars(module)
    names: tuple[str, ...] = ("log", "log_dict")
    before = {name: own[name] for name in names if name in own}
    own.update(log=notes.log, log_dict=notes.log_dict)
    try:
        yield notes
    finally:
        for name in names:
            del own[name]
        own.update(before)


def _flat(loaders: Any) -> list[Iterable[Any]]:
    """List the validation loaders, in whatever form they were passed."""
    if isinstance(loaders, Mapping):
        loaders = list(loaders.values())
    return list(loaders) if isinstance(loaders, (list, tuple)) else [loaders]
