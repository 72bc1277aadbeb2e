"""The tensors of a model that are averaged, and their places in it.

A slot stores the place of a tensor (a module's dictionary and a key) instead of the
tensor itself, so replaced buffers and moved or cast models are followed without walking
through the modules at every update.
"""

import inspect
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Union

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from switch_ema.averaging._torch import (
    NormLayer,
    buffers_of,
    is_persistent,
    metadata_addresses,
    parameters_of,
)
from switch_ema.averaging.distributed.fsdp import is_sharded, is_sharder, local_part
from switch_ema.averaging.kernels.torch_ops import PLAIN_TYPES, is_dense
from switch_ema.averaging.model.names import plain_name

Filter = Union[str, Iterable[str], Callable[..., bool], None]
_TRAINABLE = "trainable"
"""Filter for tensors that require a gradient, and for the buffers beside them."""
_STATISTICS = "running_mean", "running_var"
Place = tuple[str, int, str]
"""A tensor's name, the dictionary that holds it, and its key there."""


@dataclass(frozen=True, eq=False, slots=True)
class Slot:
    """The place of one tensor in a model."""

    names: tuple[str, ...]
    """All names of the tensor, main name first; tied weights have several."""
    owner: dict[str, Tensor]
    key: str
    is_buffer: bool
    sharder: Any = None
    """The FSDP2 module that gathers the tensor for forward passes, if one does."""
    is_shared: bool = False
    """Whether other tensors of the model lie in the same memory."""
    is_persistent: bool = True
    """Whether the tensor is in the model's state dict."""
    is_statistic: bool = False
    """Whether it is a running statistic of a normalisation layer."""
    is_trainable: bool = True
    """Whether it requires a gradient, or for a buffer, a parameter beside it does."""

    @property
    def name(self) -> str:
        """The tensor's main name, without prefixes of wrappers."""
        return self.names[0]

    @property
    def tensor(self) -> Tensor:
        """The tensor that is in the slot now, under FSDP2 the sharded one."""
        tensor = self.owner[self.key]
        if self.sharder is not None and not is_sharded(tensor):
            # A forward pass without a backward leaves a gathered copy in the module.
            # Writes must go to the shards, and the next forward must gather again.
            self.sharder.reshard()
            tensor = self.owner[self.key]
        return tensor

    @property
    def local(self) -> Tensor:
        """The local part of the tensor: its shard, or all of it."""
        return local_part(self.tensor)

    @property
    def is_gone(self) -> bool:
        """Whether the model no longer has the tensor."""
        return self.owner.get(self.key) is None

    @property
    def stays(self) -> bool:
        """Whether casts and moves keep the tensor object: parameters, not buffers."""
        return not self.is_buffer

    @property
    def is_lazy(self) -> bool:
        """Whether the tensor of a lazy module is uninitialised."""
        return is_lazy(self.tensor)

    @property
    def place(self) -> "Place":
        """A key that is equal for slots of the same place and name."""
        return self.name, id(self.owner), self.key


def all_slots(model: nn.Module, *, unusual: bool = False) -> list[Slot]:
    """List every parameter and buffer of a model, tied weights once.

    Args:
        model: the model.
        unusual: also list tensors that cannot be kept, see :func:`can_be_kept`.
    """
    found: dict[Any, list[Slot]] = {}
    sharders: dict[str, nn.Module | None] = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        above = sharders.get(prefix.rpartition(".")[0])
        sharders[prefix] = sharder = module if is_sharder(module) else above
        owners = (parameters_of(module), False), (buffers_of(module), True)
        trains = any(p is not None and p.requires_grad for p in owners[0][0].values())
        for owner, is_buffer in owners:
            for key, tensor in owner.items():
                if tensor is not None and (unusual or can_be_kept(tensor)):
                    raw = f"{prefix}.{key}" if prefix else key
                    names = (plain_name(model, raw),)
                    by = None if is_buffer else sharder
                    kept = not is_buffer or is_persistent(module, key)
                    trained = trains if is_buffer else tensor.requires_grad
                    slot = Slot(
                        names,
                        owner,
                        key,
                        is_buffer,
                        by,
                        is_persistent=kept,
                        is_statistic=is_buffer and is_statistic(module, key),
                        is_trainable=trained,
                    )
                    found.setdefault(identity(tensor), []).append(slot)
    return [_tied(slots) if len(slots) > 1 else slots[0] for slots in found.values()]


def _tied(slots: list[Slot]) -> Slot:
    names = tuple(dict.fromkeys(slot.name for slot in slots))
    objects = {id(slot.owner[slot.key]) for slot in slots}
    return replace(
        slots[0],
        names=names,
        is_shared=len(objects) > 1,
        is_persistent=any(slot.is_persistent for slot in slots),
        is_statistic=any(slot.is_statistic for slot in slots),
        is_trainable=any(slot.is_trainable for slot in slots),
    )


def is_statistic(module: nn.Module, buffer: str) -> bool:
    """Whether a buffer is a running statistic of a normalisation layer.

    Layers of other libraries are recognised by torch's names for statistics, also as
    the end of a longer name, as in stacked models.
    """
    return isinstance(module, NormLayer) or buffer.endswith(_STATISTICS)


def can_be_kept(tensor: Tensor) -> bool:
    """Whether a shadow can hold the tensor; other tensors are ignored.

    It cannot hold sparse, nested, quantised or 8-bit tensors, for which torch has no
    arithmetic, nor expanded tensors, whose elements share memory.
    """
    if is_lazy(tensor):
        return True
    if tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized:
        return False
    if tensor.is_floating_point() and tensor.dtype.itemsize < 2:
        return False
    if type(tensor) not in PLAIN_TYPES:
        return True
    return 0 not in tensor.stride() or is_dense(tensor)


def select(slots: list[Slot], include: Filter, exclude: Filter) -> list[Slot]:
    """Return the slots that pass both filters."""
    if include is not None:
        slots = _select(slots, "include", include, keep=True)
    if exclude is not None:
        slots = _select(slots, "exclude", exclude, keep=False)
    return slots


def identity(tensor: Tensor) -> Any:
    """Return a key that is equal for tied tensors: one object, or the same memory."""
    if not _has_address(tensor):
        return id(tensor)
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def _select(slots: list[Slot], argument: str, rule: Filter, keep: bool) -> list[Slot]:
    if callable(rule):
        matches = _predicate(rule)
        chosen = {id(slot) for slot in slots if matches(slot)}
        if not chosen:
            raise ValueError(f"{argument} matches no tensor of the model.")
    else:
        patterns = [rule] if isinstance(rule, str) else list(rule or ())
        chosen = set()
        for pattern in patterns:
            hits = {id(slot) for slot in slots if _matches(slot, pattern)}
            if not hits:
                known = ", ".join(slot.name for slot in slots[:5])
                raise ValueError(
                    f"{argument} matches no tensor of the model: {pattern!r}; "
                    f"the model has {known}{', ...' if len(slots) > 5 else ''}."
                )
            chosen |= hits
    left = [slot for slot in slots if (id(slot) in chosen) is keep]
    if not left:
        raise ValueError(f"{argument} leaves no tensor of the model to average.")
    return left


def _predicate(rule: Callable[..., bool]) -> Callable[[Slot], bool]:
    """Adapt a predicate of (name) or of (name, tensor) to slots."""
    required = [
        parameter
        for parameter in inspect.signature(rule).parameters.values()
        if parameter.default is parameter.empty
    ]
    if len(required) == 1:
        return lambda slot: any(rule(name) for name in slot.names)
    return lambda slot: any(rule(name, slot.tensor) for name in slot.names)


def _matches(slot: Slot, pattern: str) -> bool:
    """Match a tensor name, a glob, a module name, or "trainable"."""
    if pattern == _TRAINABLE:
        return slot.is_trainable
    return any(
        fnmatchcase(name, pattern) or name.startswith(f"{pattern}.")
        for name in slot.names
    )


def without_views(slots: list[Slot]) -> list[Slot]:
    """Leave out tensors that are views into another tensor's memory.

    For example a decoder that is its encoder transposed, or a small layer that is the
    first columns of a large one: averaging both would update the same memory twice.

    Raises:
        ValueError: two tensors share a part of their memory, and neither is the whole.
    """
    views: set[int] = set()
    wholes: set[int] = set()
    for members in _by_room(slots):
        kept: list[Slot] = []
        # Among tensors that begin at the same place, the longest comes first.
        for slot in sorted(members, key=_order):
            kept = [one for one in kept if _end(one.local) > slot.local.data_ptr()]
            for whole in kept:
                if not _overlap(whole.local, slot.local):
                    continue
                if not _is_inside(slot.local, whole.local):
                    raise ValueError(
                        f"{whole.name} and {slot.name} overlap in memory, so they "
                        "cannot be averaged separately; exclude one of them."
                    )
                views.add(id(slot))
                wholes.add(id(whole))
                break
            else:
                kept.append(slot)
    return [
        replace(slot, is_shared=True) if id(slot) in wholes else slot
        for slot in slots
        if id(slot) not in views
    ]


def _by_room(slots: list[Slot]) -> Iterable[list[Slot]]:
    """Group the tensors whose addresses can be compared.

    Elsewhere than on the CPU, that is only within one storage.
    """
    rooms: dict[int | None, list[Slot]] = {}
    for slot in slots:
        if _has_address(slot.local):
            room = None if slot.local.is_cpu else metadata_addresses(slot.local)[2]
            rooms.setdefault(room, []).append(slot)
    return rooms.values()


def _has_address(tensor: Tensor) -> bool:
    """Whether a tensor's values lie at its address, and nowhere else."""
    plain = type(tensor) in PLAIN_TYPES and tensor.layout == torch.strided
    unusual = not plain or tensor.is_nested or is_lazy(tensor) or tensor.is_meta
    return not unusual and tensor.numel() > 0


def _order(slot: Slot) -> tuple[int, int, int]:
    return slot.local.data_ptr(), -_end(slot.local), -slot.local.nbytes


def _end(tensor: Tensor) -> int:
    """Return the address behind the last element."""
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr() + (last + 1) * tensor.element_size()


def _overlap(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors, of which the first begins first, have a byte in common."""
    if second.data_ptr() >= _end(first):
        return False
    return is_dense(first) or bool(_marked(first, second).any())


def _is_inside(part: Tensor, whole: Tensor) -> bool:
    """Whether all bytes of a tensor are in another one that begins before it."""
    if _end(part) > _end(whole):
        return False
    return is_dense(whole) or bool(_marked(whole, part).all())


def _marked(first: Tensor, second: Tensor) -> Tensor:
    """Return which bytes of the second tensor the first one has, too.

    Only spans with gaps need this: columns of one matrix may lie between each other.
    """
    begin, end = first.data_ptr(), max(_end(first), _end(second))
    unit = math.gcd(
        first.element_size(), second.element_size(), second.data_ptr() - begin
    )
    marks = torch.zeros((end - begin) // unit, dtype=torch.bool)
    views = []
    for tensor in (first, second):
        units = tensor.element_size() // unit
        strides = [stride * units for stride in tensor.stride()]
        offset = (tensor.data_ptr() - begin) // unit
        views.append(marks.as_strided((*tensor.shape, units), (*strides, 1), offset))
    views[0].fill_(True)
    return views[1]
