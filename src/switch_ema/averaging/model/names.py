"""Tensor names that do not depend on how a model is wrapped.

``torch.compile`` prefixes names with ``_orig_mod.``, DDP with ``module.``, Fabric with
``_forward_module.``; with such names, a shadow would not fit the same model in another
wrapper.
"""

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from switch_ema.averaging._torch import children_of

_WRAPPER_NAMES = {"_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"}
_FABRIC_NAMES = {"_forward_module", "_original_module"}
"""The children of Fabric's wrapper: the model as it runs, and the original."""
_WRAPPER_TYPES = (DataParallel, DistributedDataParallel)


def unwrap(model: nn.Module) -> nn.Module:
    """Return the user's module inside torch.compile, DDP and similar wrappers.

    Args:
        model: wrapped or not.

    >>> linear = nn.Linear(2, 2)
    >>> unwrap(nn.DataParallel(linear)) is linear
    True
    """
    while True:
        for name, child in children_of(model).items():
            if child is not None and _is_wrapper(model, name):
                model = child
                break
        else:
            return model


def plain_name(model: nn.Module, name: str) -> str:
    """Remove the prefixes of wrappers from a dotted name within ``model``."""
    parts: list[str] = []
    module: nn.Module | None = model
    for part in name.split("."):
        if module is None or not _is_wrapper(module, part):
            parts.append(part)
        module = children_of(module).get(part) if module is not None else None
    return ".".join(parts)


def load_weights(model: nn.Module, weights: Mapping[str, Any]) -> None:
    """Load plain-named weights into a model that may have wrapped parts.

    ``unwrap(model).load_state_dict(weights)`` does the same if only the whole model is
    wrapped; this also handles compiled or wrapped submodules.

    Args:
        model: the plain or the wrapped one.
        weights: tensors by plain name, such as ``averaged_state_dict()``.
    """
    inner = unwrap(model)
    renamed = {plain_name(inner, name): name for name in inner.state_dict()}
    inner.load_state_dict({renamed.get(key, key): weights[key] for key in weights})


def _is_wrapper(module: nn.Module, child: str) -> bool:
    return (
        child in _WRAPPER_NAMES
        or (child == "module" and isinstance(module, _WRAPPER_TYPES))
        or (child in _FABRIC_NAMES and children_of(module).keys() == _FABRIC_NAMES)
    )
