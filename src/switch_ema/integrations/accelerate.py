"""Weight averaging with Accelerate: one line after ``accelerator.prepare``."""

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import nn

from switch_ema._extras import needed
from switch_ema.averaging.averager import Averager
from switch_ema.averaging.model.names import unwrap
from switch_ema.averaging.registry import MethodOptions, create_averager
from switch_ema.averaging.view.stage import stage_of
from switch_ema.integrations.options import check_method, spelled_out
from switch_ema.integrations.sharding import gathered

if TYPE_CHECKING:
    from typing_extensions import Unpack

with needed("accelerate", extra="accelerate"):
    from accelerate import Accelerator
    from accelerate.optimizer import AcceleratedOptimizer


@spelled_out
def prepare_averager(
    accelerator: Accelerator,
    model: nn.Module,
    optimizer: Any,
    method: str = "switch-ema",
    **options: "Unpack[MethodOptions]",
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
        options: the options of the method, such as ``decay`` and ``switch_every``.

    Example::

        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        averager = prepare_averager(accelerator, model, optimizer, decay=0.999)
    """
    check_method(method, options)
    wrapped = optimizer if isinstance(optimizer, (list, tuple)) else [optimizer]
    inner = [_inside(one) for one in wrapped]
    averager = create_averager(method, model, inner, **options)
    accelerator.register_for_checkpointing(_Whole(averager))
    _save_live_weights(accelerator, model)
    return averager


class _Whole:
    """An averager with whole tensors as state: Accelerate lets one process write it."""

    def __init__(self, averager: Averager) -> None:
        self._averager = averager

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = gathered(self._averager.state_dict())
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self._averager.load_state_dict(state_dict)  # each process takes its own part


def _save_live_weights(accelerator: Accelerator, model: nn.Module) -> None:
    """Let ``save_state`` see the live weights, also inside ``averaged()``.

    A hook before saving would come too late: sharded models have been written by then.
    """
    save_state = accelerator.save_state

    @functools.wraps(save_state)
    def save_live(*args: Any, **kwargs: Any) -> Any:
        with stage_of(unwrap(model)).showing(None):
            return save_state(*args, **kwargs)

    accelerator.save_state = save_live


def _inside(optimizer: Any) -> Any:
    """Return the torch optimizer, which steps only when a step is due."""
    if isinstance(optimizer, AcceleratedOptimizer):
        return optimizer.optimizer
    return optimizer
