"""Copies of models and shadows as state dicts, and strict loading."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from switch_ema.averaging.distributed import fsdp
from switch_ema.averaging.model.names import plain_name
from switch_ema.averaging.model.slots import identity
from switch_ema.averaging.schedules.progress import COUNTERS
from switch_ema.averaging.shadow.shadow import Shadow


class StateMismatch(RuntimeError, ValueError):
    """A state dict does not fit; nothing has been changed.

    torch's modules raise RuntimeError here and its optimizers ValueError, so both
    ways of catching it work.
    """


def snapshot(model: nn.Module, full: bool = False) -> dict[str, Any]:
    """Copy a model's state dict under plain names; tied weights stay tied.

    Args:
        model: is not changed.
        full: gather sharded tensors; rank 0 returns them, other ranks an empty dict.
    """
    copies: dict[Any, Any] = {}
    result = {}
    # keep_vars: only the parameter objects identify tied sharded weights the same way
    # on all ranks, even where a shard is empty; all ranks must gather the same tensors.
    for name, value in model.state_dict(keep_vars=True).items():
        key = identity(value) if isinstance(value, Tensor) else id(value)
        if key not in copies:
            copies[key] = _copy(value, full)
        result[plain_name(model, name)] = copies[key]
    return result if not full or fsdp.has_the_whole() else {}


def _copy(value: Any, full: bool) -> Any:
    if not isinstance(value, Tensor):
        return copy.deepcopy(value)
    if not full or not fsdp.is_sharded(value):
        return value.detach().clone()
    # One at a time: no device ever holds more than one whole tensor.
    gathered = fsdp.whole(value.detach())
    return gathered.cpu() if fsdp.has_the_whole() else None


def shadow_state(shadow: Shadow) -> dict[str, Tensor]:
    """Copy a shadow's averages by name, without buffers that are not persistent."""
    shadow.follow_buffers()
    averages = zip(shadow.slots, shadow.averages(), strict=True)
    return {
        slot.name: average.detach().clone()
        for slot, average in averages
        if slot.is_persistent
    }


def check_shadow_state(shadow: Shadow, state: Any, what: str) -> None:
    """Raise StateMismatch unless ``state`` has just the shadow's names and shapes."""
    if not isinstance(state, Mapping):
        raise StateMismatch(
            f"The state dict has no {what!r}; pass what averager.state_dict() returned."
        )
    shadow.follow_buffers()
    pairs = zip(shadow.slots, shadow.tensors, strict=True)
    expected = {
        slot.name: fsdp.like_model_tensor(slot.tensor, tensor)
        for slot, tensor in pairs
        if slot.is_persistent
    }
    # Version 0.1.0 stored non-persistent buffers as well.
    others = {slot.name for slot in shadow.slots if not slot.is_persistent}
    for name, tensor in expected.items():
        mismatch = fsdp.division_mismatch(state.get(name), tensor)
        if mismatch:
            raise StateMismatch(
                f"The state dict holds {mismatch}, so nothing was loaded; use "
                "torch.distributed.checkpoint to change the number of processes."
            )
    shapes = [
        f"{name} is {_shape(state[name])}, expected {list(tensor.shape)}"
        for name, tensor in expected.items()
        if name in state and _shape(state[name]) != list(tensor.shape)
    ]
    values = [
        f"{name} ({_unusable(state[name], tensor)})"
        for name, tensor in expected.items()
        if name in state and not shapes and _unusable(state[name], tensor)
    ]
    problems = {
        "missing": [name for name in expected if name not in state],
        "unexpected": [n for n in state if n not in expected and n not in others],
        "of another shape": shapes,
        "without usable values": values,
    }
    found = [f"{kind}: {_listed(names)}" for kind, names in problems.items() if names]
    if found:
        raise StateMismatch(
            "The state dict belongs to another model, so nothing was loaded; "
            f"{'. '.join(found)}."
        )


def _unusable(value: Any, own: Tensor) -> str | None:
    """Return why a tensor of the right shape cannot be loaded, None if it can."""
    if not isinstance(value, Tensor):
        return type(value).__name__
    if value.is_meta and not own.is_meta:
        return "it is on the meta device"
    if value.layout != torch.strided or value.is_nested or value.is_quantized:
        return f"its layout is {value.layout}, quantised: {value.is_quantized}"
    if value.is_complex() and not own.is_complex():
        return f"it is {value.dtype}, expected {own.dtype}"
    return None


def _shape(value: Any) -> list[int] | str:
    return list(value.shape) if isinstance(value, Tensor) else type(value).__name__


def _listed(names: list[str], most: int = 20) -> str:
    rest = f"; and {len(names) - most} more" if len(names) > most else ""
    return "; ".join(names[:most]) + rest


@torch.no_grad()
def load_shadow_state(shadow: Shadow, state: Mapping[str, Tensor]) -> None:
    """Copy checked averages into a shadow; tensors not stored take live values."""
    shadow.read_()
    for slot, tensor in zip(shadow.slots, shadow.tensors, strict=True):
        if slot.is_persistent:
            tensor.copy_(fsdp.part_of(state[slot.name], slot.tensor))


def _is_count(value: Any, may_be_none: bool = False) -> bool:
    if value is None:
        return may_be_none
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def check_state(state: Any, method: str, others: Sequence[str]) -> None:
    """Raise StateMismatch unless the state belongs to the method and is complete.

    Args:
        state: the state to be loaded.
        method: the name of the method that loads it.
        others: names that the state must have besides the counters.
    """
    if not isinstance(state, Mapping) or "method" not in state:
        raise StateMismatch("This is not the state_dict() of an averager.")
    if state["method"] != method:
        raise StateMismatch(
            f"The state dict belongs to the method {state['method']!r}, not "
            f"{method!r}, so nothing was loaded."
        )
    missing = [name for name in (*COUNTERS, *others) if name not in state]
    wrong = [
        name
        for name in COUNTERS
        if name in state and not _is_count(state[name], name == "steps_per_epoch")
    ]
    for name in ("waiting_for", "resting"):
        numbers = state.get(name, [])
        if not isinstance(numbers, (list, tuple)) or not all(map(_is_count, numbers)):
            wrong.append(name)
    if wrong:
        raise StateMismatch(
            f"In the state dict, {', '.join(wrong)} must be whole numbers of at least "
            "0; nothing was loaded."
        )
    if missing:
        raise StateMismatch(
            f"The state dict lacks {', '.join(missing)}, so nothing was loaded."
        )
