"""The averaged model as a safetensors file that any library loads."""

import os
from typing import Any, Protocol

from torch import Tensor

from switch_ema._files import write_atomically
from switch_ema.averaging.distributed.fsdp import has_the_whole, whole
from switch_ema.averaging.offline.provenance import current_commit, provenance
from switch_ema.averaging.offline.streams import require_safetensors

_FACTS = {
    "method": "name",
    "decay": "current_decay",
    "steps": "steps",
    "epochs": "epochs",
    "switches": "switches",
}
"""Attributes of an averager, by their names in the header."""


class HasAverage(Protocol):
    """An averager or a :class:`Best`."""

    def averaged_state_dict(self) -> dict[str, Any]:
        """Return a copy of the averaged model."""


def save_averaged(averager: HasAverage, path: str | os.PathLike[str]) -> None:
    """Write the averaged weights under plain names, in the model's dtypes.

    ``safetensors.torch.load_file`` reads them for ``model.load_state_dict``, timm as
    ``create_model(..., checkpoint_path=path)``, and transformers as the
    ``model.safetensors`` beside a ``config.json``. Tied weights are written under each
    of their names, so that a strict load finds them all. The header names the method,
    its decay and counters, and the git commit of the current folder. The file appears
    complete or not at all. With several processes, call it on all ranks: sharded
    weights are gathered, and rank 0 writes.

    Args:
        averager: an averager, or a :class:`Best`.
        path: of the safetensors file; one that is there is replaced.

    Raises:
        ValueError: the state dict has something that is not a tensor.
    """
    files = require_safetensors("save_averaged")
    weights = {n: _whole(n, v) for n, v in averager.averaged_state_dict().items()}
    if not has_the_whole():
        return
    counted = getattr(averager, "averager", averager)
    facts = {fact: getattr(counted, name) for fact, name in _FACTS.items()}
    best = getattr(averager, "best_epoch", None)
    metadata = provenance("average", facts, best_epoch=best, commit=current_commit())
    write_atomically(path, lambda file: files.save_file(weights, file, metadata))


def _whole(name: str, value: Any) -> Tensor:
    """Copy a tensor to dense memory on the CPU."""
    if not isinstance(value, Tensor):
        raise ValueError(
            f"A safetensors file holds only tensors, but {name} in the state dict is "
            f"{type(value).__name__}; save it with torch.save(averaged_state_dict())."
        )
    dense = whole(value).detach().cpu().contiguous()
    # Tied names share memory, which the format refuses.
    return dense.clone()
