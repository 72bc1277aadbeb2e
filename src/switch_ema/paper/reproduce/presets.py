"""From a row of a table to the comparison that trains it, small or as in the paper."""

from dataclasses import dataclass
from typing import Literal

from switch_ema.bench.errors import UsageError
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.spec import Spec, parse_spec
from switch_ema.paper.tables.table import EPOCHS, PaperRow
from switch_ema.zoo.decays import Decays

SCALES = ("small", "paper")


@dataclass(frozen=True, kw_only=True)
class RowSettings:
    """How rows are trained; with the row, all that the numbers depend on."""

    scale: Literal["small", "paper"] = "small"
    """Small networks on small data, or the paper's networks, data and epochs."""
    seeds: int | None = None
    """How many trainings of each method; by default 3, and in rows of Tables 2 and 3 at
    the small scale 5 or 16."""
    epochs: int | None = None
    """Length of a training; by default the scale's own."""
    dataset: str | None = None
    """Data of the small scale, such as cifar10; by default the row's own."""

    def __post_init__(self) -> None:
        if self.scale not in SCALES:
            raise UsageError(
                f"scale must be {' or '.join(SCALES)}, got {self.scale!r}."
            )
        if self.scale == "paper" and self.dataset is not None:
            raise UsageError(
                "dataset is for the small scale, since each row of the paper has its "
                f"own; got {self.dataset!r}."
            )


def row_config(row: PaperRow, settings: RowSettings) -> CompareConfig:
    """Return the comparison of all methods of a row, the row's baseline first.

    At the paper's scale it names the paper's network, data, epochs, optimizer and
    decays. At the small scale, where that would take most of the time, it is the
    small version of the network, and the rest is the task's own.
    """
    setting = row.setting(settings.scale)
    epochs = settings.epochs or setting.epochs
    options = {
        key: epochs if value == EPOCHS else value
        for key, value in setting.options.items()
    }
    if settings.dataset is not None or setting.datasets:
        options["dataset"] = settings.dataset or _first_found(setting.datasets)
    return CompareConfig(
        tasks=tuple(
            str(Spec(setting.task, {**options, **own}))
            for own in setting.variants.values() or ({},)
        ),
        methods=tuple(
            _with_decay(m, setting.decays) for m in row.methods_at(settings.scale)
        ),
        optimizer=setting.optimizer,
        seeds=seeds_of(row, settings),
        first_seed=setting.first_seed,
        epochs=epochs,
        stack=setting.stack,
    )


def seeds_of(row: PaperRow, settings: RowSettings) -> int:
    """Return how many seeds a row is trained with."""
    own = row.setting(settings.scale).seeds
    return own if settings.seeds is None else settings.seeds


def _first_found(datasets: tuple[str, ...]) -> str:
    """Choose the first dataset that is here; the last one comes with a library."""
    # Listing tables needs no torch, which the loaders of data do.
    from switch_ema.zoo.data.sources import find_download, find_files

    here = (
        name
        for name in datasets[:-1]
        if find_files(name) is not None or find_download(name) is not None
    )
    return next(here, datasets[-1])


def _with_decay(method: str, decays: Decays | None) -> str:
    """Add the decay to EMA and Switch EMA, unless the method has one already."""
    spec = parse_spec(method)
    given = {} if decays is None else decays.options().get(spec.name, {})
    return str(spec.with_defaults(given)) if given else method
