"""Weight averaging with Accelerate: one line after ``accelerator.prepare``."""

from typing import Any

from torch import nn

from switch_ema.averaging.averager import Averager
from switch_ema.averaging.naming import unwrap
from switch_ema.averaging.registry import create_averager
from switch_ema.integrations.missing import needed

with needed("accelerate", extra="accelerate"):
    from accelerate import Accelerator
    from accelerate.optimizer import AcceleratedOptimizer


def prepare_averager(
    accelerator: Accelerator,
    model: nn.Module,
    optimizer: Any,
    method: str = "switch-ema",
    **options: Any,
) -> Averager:
    """Make an averager that counts real steps and is saved with the state.

    Steps count where ``accelerator.accumulate`` lets the optimizer step and the
    GradScaler does not skip. ``accelerator.save_state`` stores the averager and the
    live weights, also when called inside ``averaged()``; ``load_state`` takes them
    back.

    Args:
        accelerator: the one that prepared the model.
        model: as ``accelerator.prepare`` returned it.
        optimizer: as ``accelerator.prepare`` returned it, one or a list.
        method: a name of ``switch_ema.METHODS``.
        options: of the method, such as ``decay`` and ``switch_every``.

    Example::

        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        averager = prepare_averager(accelerator, model, optimizer, decay=0.999)
    """
    wrapped = optimizer if isinstance(optimizer, (list, tuple)) else [optimizer]
    inner = [_inside(one) for one in wrapped]
    averager = create_averager(method, model, inner, **options)
    accelerator.register_for_checkpointing(averager)

    def store_live(
        models: list[nn.Module], weights: list[dict[str, Any]], folder: str
    ) -> None:
        # Sharded models write themselves before this hook and leave no weights here.
        for i, candidate in enumerate(models[: len(weights)]):
            if unwrap(candidate) is unwrap(model):
                live = averager.live_state_dict()
                names = zip(weights[i], live, strict=True)
                weights[i] = {name: live[plain] for name, plain in names}

    accelerator.register_save_state_pre_hook(store_live)
    return averager


def _inside(optimizer: Any) -> Any:
    """Return the torch optimizer, which steps only when a step is due."""
    if isinstance(optimizer, AcceleratedOptimizer):
        return optimizer.optimizer
    return optimizer
