"""The shadow: one averaged copy of a model's tensors.

The shadow is a list of tensors beside a list of slots, never a second module, so models
that cannot be deep-copied work too. Lists are built once; an update looks up the live
tensors and passes both lists to one kernel. For sharded tensors, the shadow holds the
local part.
"""

import operator
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from switch_ema.averaging._torch import (
    buffers_of,
    forget_computed_weights,
    parameters_of,
)
from switch_ema.averaging.distributed.fsdp import is_sharded, like_model_tensor
from switch_ema.averaging.kernels import native, torch_ops
from switch_ema.averaging.model.slots import Slot
from switch_ema.averaging.shadow.flat import FlatGroup
from switch_ema.averaging.shadow.groups import (
    CastGroup,
    DenseGroup,
    DeviceGroup,
    Group,
    PackedGroup,
    RoundedGroup,
    RoundedMemoryGroup,
    SameGroup,
    WidenedGroup,
)
from switch_ema.averaging.shadow.offload import OffloadedGroup
from switch_ema.averaging.shadow.storage import Storage
from switch_ema.averaging.step.blocks import Shadows
from switch_ema.averaging.view.swap import Swap, insist

_GROUPS: tuple[type[Group], ...] = (
    RoundedMemoryGroup,
    RoundedGroup,
    OffloadedGroup,
    WidenedGroup,
    FlatGroup,
    DenseGroup,
    DeviceGroup,
    PackedGroup,
    SameGroup,
    CastGroup,
)
"""The kinds of groups; the first that fits a tensor averages it."""


def group_class(slot: Slot, storage: Storage) -> type[Group]:
    """Choose the kind of group that averages the tensor in ``slot``."""
    return next(kind for kind in _GROUPS if kind.fits(slot, storage))


class Shadow:
    """An averaged copy of the tensors in ``slots``; it starts equal to them."""

    def __init__(self, slots: list[Slot], storage: Storage) -> None:
        self.storage = storage
        self._swap: Swap | None = None
        self._seen_in_step: list[list[Tensor] | None] = []
        self._pairs_in_step: Shadows = {}
        self._groups: list[Group] = []
        self._occupy(slots)

    def average_(self, weight: float, step: int, in_step: bool = False) -> None:
        """``shadow += weight * (live - shadow)``; copied buffers are read on demand.

        A weight of 0 leaves the averages unchanged.

        Args:
            weight: the weight of the live tensors, ``1 - decay``.
            step: the number of optimizer steps so far.
            in_step: whether the optimizer has averaged :meth:`pairs_in_step` already.
        """
        self._copies_are_stale = True
        if weight == 0:
            return
        groups = self._groups_after_step() if in_step else self._groups
        lives = [group.live() for group in groups]
        has_come_back = self._gone and self._has_come_back()
        if None in lives or has_come_back or not self._is_grouped:
            done = self._averaged_in_step() if in_step else set()
            self._adapt()
            groups = self._groups_without(done)
            lives = [group.live() for group in groups]
        for group, live in zip(groups, lives, strict=True):
            assert live is not None
            group.is_finite = None  # unless the kernel finds out
            group.average_(live, weight, step)

    def _groups_after_step(self) -> list[Group]:
        """Return the groups that an optimizer does not average in its step."""
        return [g for g in self._groups if not g.can_be_averaged_in_step]

    def _averaged_in_step(self) -> set[int]:
        pairs = zip(self._groups, self._indices, strict=True)
        return {i for g, own in pairs if g.can_be_averaged_in_step for i in own}

    def _groups_without(self, done: set[int]) -> list[Group]:
        """Leave out tensors that are averaged; regrouping may mix them with others."""
        groups: list[Group] = []
        for group, indices in zip(self._groups, self._indices, strict=True):
            left = [i for i in indices if i not in done]
            if len(left) == len(indices):
                groups.append(group)
            elif left:
                tensors = [self.tensors[i] for i in left]
                groups.append(CastGroup([self.slots[i] for i in left], tensors))
        return groups

    def pairs_in_step(self) -> Shadows:
        """Return the parameters that an optimizer may average, with their shadows.

        Empty if the model has changed (the next update adapts to it); the same object
        as before if nothing has changed.
        """
        groups = [group for group in self._groups if group.can_be_averaged_in_step]
        _doubt(groups)
        lives = [group.live() for group in groups]
        known, self._seen_in_step = self._seen_in_step, lives
        if len(known) == len(lives) and all(map(operator.is_, known, lives)):
            return self._pairs_in_step
        self._pairs_in_step = {}
        for group, found in zip(groups, lives, strict=True):
            if found is None:
                self._pairs_in_step = {}
                break
            pairs = zip(found, group.shadow, strict=True)
            self._pairs_in_step |= {id(live): (live, own) for live, own in pairs}
        return self._pairs_in_step

    @torch.no_grad()
    def read_(self) -> None:
        """``shadow = live``, buffers included."""
        self._adapt()
        present = [i for i, slot in enumerate(self.slots) if not slot.is_gone]
        live = [self.slots[i].local for i in present]
        torch_ops.copy_([self.tensors[i] for i in present], live)
        self._copies_are_stale = False

    @torch.no_grad()
    def copy_(self, other: "Shadow") -> None:
        """Take the values of another shadow of the same slots."""
        self._adapt()
        other._adapt()
        torch_ops.copy_(self.tensors, other.tensors)

    @torch.no_grad()
    def read_if_loaded_(self) -> None:
        """``shadow = live`` if parameters were set since the last call.

        Buffers are ignored: the first forward pass changes them, too.
        """
        self._adapt()
        devices = {tensor.device.type for tensor in self.tensors}
        if devices.isdisjoint(("cpu", "meta")):
            self._read_where_loaded_()
            return
        for slot, shadow in zip(self.slots, self.tensors, strict=True):
            if slot.is_buffer:
                continue
            live = slot.local.to(shadow.device, shadow.dtype)
            if not torch.equal(live, shadow):
                self.read_()
                return

    def _read_where_loaded_(self) -> None:
        """Do the same on accelerators, with the decision on the device: no sync."""
        pairs = zip(self.slots, self.tensors, strict=True)
        rows = [(slot, slot.local, own) for slot, own in pairs if not slot.is_gone]
        changed = [
            (live.to(own.device, own.dtype) != own).any()
            for slot, live, own in rows
            if not slot.is_buffer
        ]
        for slot, live, own in rows:
            if slot.is_buffer:
                is_loaded = torch.stack([c.to(own.device) for c in changed]).any()
                own.copy_(torch.where(is_loaded, live.to(own.device, own.dtype), own))
        parameters = [row for row in rows if not row[0].is_buffer]
        torch_ops.copy_([own for *_, own in parameters], [r[1] for r in parameters])

    @torch.no_grad()
    def read_module_(self, module: nn.Module) -> None:
        """``shadow = live`` for the tensors that one module itself holds."""
        if not self._is_grouped:  # a copy
            self._adapt()
        owners = {id(parameters_of(module)), id(buffers_of(module))}
        for i in [i for owner in owners for i in self._by_owner.get(owner, ())]:
            if self.slots[i].is_gone:
                continue
            live, shadow = self.slots[i].local, self.tensors[i]
            if live.shape == shadow.shape:  # other shapes are handled by _adapt()
                shadow.copy_(live)

    def __getstate__(self) -> dict[str, Any]:
        """Copy slots and tensors, not groups, which depend on addresses."""
        self._finish_groups()
        names = ("storage", "slots", "tensors", "is_sharded", "_copies_are_stale")
        return {name: vars(self)[name] for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore them; groups are formed on first use.

        The model may have been cast, moved or changed since the last update, or may
        still be half unpickled.
        """
        vars(self).update(state)
        self._swap, self._seen_in_step, self._pairs_in_step = None, [], {}
        self._ungroup()

    @torch.no_grad()
    def mark(self) -> "Mark":
        """Copy one live element of each parameter; training changes them."""
        mark = Mark()
        for slot in self.slots:
            live = slot.local
            is_plain = type(live) in torch_ops.PLAIN_TYPES and not live.is_meta
            if is_plain and live.numel() and not slot.is_buffer:
                mark.add(slot.name, live.as_strided((), ()))
        return mark.copied()

    @torch.no_grad()
    def write_(self, live_share: float = 0.0) -> None:
        """``live = live_share * live + (1 - live_share) * shadow`` where averaged."""
        self._adapt()
        if live_share:
            self._mix_live_(live_share)
        else:
            self._copy_to_live_()
        forget_computed_weights()

    def _mix_live_(self, live_share: float) -> None:
        for indices, lerp_ in (
            (self.averaged_parameters, torch_ops.lerp_cast_),
            (self.averaged_buffers, torch_ops.lerp_finite_),
        ):
            live = [self.slots[i].local for i in indices]
            lerp_(live, [self.tensors[i] for i in indices], 1 - live_share)

    def _copy_to_live_(self) -> None:
        left: list[int] = []
        for group, indices in zip(self._groups, self._indices, strict=True):
            table = group.exchange_table()
            if table is None:
                left += indices
            else:
                native.copy_(table)
                group.written()
        if left:
            live = [self.slots[i].local for i in left]
            torch_ops.copy_(live, [self.tensors[i] for i in left])

    def largest_half(self) -> Slot | None:
        """Return the slot of the largest 16-bit parameter, if any."""
        halves = [
            slot
            for slot in (self.slots[i] for i in self.averaged_parameters)
            if slot.local.dtype in (torch.float16, torch.bfloat16)
        ]
        return max(halves, key=lambda slot: slot.local.numel(), default=None)

    @torch.no_grad()
    def first_non_finite(self) -> str | None:
        """Name the first averaged parameter that holds a NaN or an infinity.

        Buffers may hold such values on purpose. Averages that the last update has
        found finite are not read again.
        """
        self.settle()
        unknown = [
            group
            for group, indices in zip(self._groups, self._indices, strict=True)
            if not all(self.slots[i].is_buffer for i in indices)
            and not group.is_known_finite()
        ]
        checked = [tensor for group in unknown for tensor in group.in_few_tensors()]
        if torch_ops.first_non_finite(checked) is None:
            for group in unknown:
                group.is_finite = True
            return None
        indices = self.averaged_parameters
        found = torch_ops.first_non_finite([self.tensors[i] for i in indices])
        return None if found is None else self.slots[indices[found]].name

    @property
    def swapped(self) -> bool:
        """Whether the average is in the model and the live weights are here."""
        return self._swap is not None

    @torch.no_grad()
    def swap_in(self) -> None:
        """Put the average into the model and keep the live weights here."""
        if self._swap is not None:
            return
        self._adapt()
        self._copy_what_is_not_averaged()
        _doubt(self._groups)
        groups = list(zip(self._groups, self._indices, strict=True))
        self._swap = Swap(self.slots, self.tensors, groups)
        try:
            self._swap.enter()
        except BaseException:
            self.swap_out()
            raise

    @torch.no_grad()
    def swap_out(self) -> None:
        """Restore the live weights, bit for bit."""
        if (swap := self._swap) is not None:
            try:
                insist(swap.leave)
            finally:
                self._swap = None
            if swap.left_out:
                self.follow_buffers()

    def averages(self) -> list[Tensor]:
        """Return the tensors that hold the average now: the model's, if swapped in."""
        if self._swap is None:
            self.settle()
            self.follow_buffers()
            self._copy_what_is_not_averaged()
            _doubt(self._groups)
            return self._as_in_the_model(self.tensors)
        return self._as_in_the_model(self._swap.averages())

    def originals(self) -> list[Tensor]:
        """Return the tensors that hold the live weights now."""
        if self._swap is None:
            pairs = zip(self.slots, self.tensors, strict=True)
            return [kept if slot.is_gone else slot.tensor for slot, kept in pairs]
        return self._as_in_the_model(self._swap.originals())

    @torch.no_grad()
    def settle(self) -> None:
        """Complete the last update; an offloaded shadow defers a part of it."""
        if not self._is_grouped:
            self._adapt()
        self._finish_groups()

    def _finish_groups(self) -> None:
        for group in self._groups:
            group.finish()

    @torch.no_grad()
    def renew(self, slots: list[Slot]) -> list[Tensor]:
        """Continue with other slots; tensors that have stayed keep their averages.

        A tensor has stayed if it has its name and shape, and is in the same module or
        is the same object: another layer of the same shape begins its own average.

        Returns:
            The averages that begin anew, with the live values.
        """
        self._finish_groups()
        known = {
            slot.name: (slot, tensor)
            for slot, tensor in zip(self.slots, self.tensors, strict=True)
        }
        stale = self._copies_are_stale
        self._occupy(slots)
        self._copies_are_stale = stale
        new = []
        for slot, tensor in zip(slots, self.tensors, strict=True):
            before, average = known.get(slot.name, (None, tensor))
            is_usable = average.shape == tensor.shape and not average.is_meta
            if before is not None and is_usable and _is_of(before, slot):
                tensor.copy_(average)
            else:
                new.append(tensor)
        return new

    def follow_buffers(self) -> None:
        """Restart the average of buffers whose shape has changed."""
        changed = map(_begins_anew, self.slots, self.tensors)
        if self._swap is None and any(changed):
            self._adapt()

    @property
    def averaged_indices(self) -> list[int]:
        """The indices of the tensors that are averaged, not copied."""
        return [i for i, s in enumerate(self.slots) if self.storage.averages(s)]

    @property
    def averaged_parameters(self) -> list[int]:
        """The parameters among them."""
        return [i for i in self.averaged_indices if not self.slots[i].is_buffer]

    @property
    def averaged_buffers(self) -> list[int]:
        """The buffers among them."""
        return [i for i in self.averaged_indices if self.slots[i].is_buffer]

    @torch.no_grad()
    def _copy_what_is_not_averaged(self) -> None:
        """Copy once when the average is read, instead of at every step.

        A buffer whose shape has changed is copied anew; one that the model has removed
        keeps its last value.
        """
        if self._copies_are_stale:
            present = [i for i in self._copied if not self.slots[i].is_gone]
            if any(map(self._has_changed, present)):
                self.follow_buffers()
            live = [self.slots[i].local for i in present]
            torch_ops.copy_([self.tensors[i] for i in present], live)
            self._copies_are_stale = False

    @torch.inference_mode(False)
    @torch.no_grad()
    def _occupy(self, slots: list[Slot]) -> None:
        for slot in slots:
            if slot.tensor.dtype == torch.complex32 and self.storage.averages(slot):
                raise TypeError(
                    f"{slot.name} is complex32, for which torch lacks arithmetic; "
                    "convert it to complex64 or exclude it."
                )
        self.slots, self._is_grouped = slots, False
        self.is_sharded = any(is_sharded(slot.tensor) for slot in slots)
        self.tensors = [self._new(slot) for slot in slots]
        self._copies_are_stale = False
        self._group()

    def _has_changed(self, index: int) -> bool:
        slot, shadow = self.slots[index], self.tensors[index]
        if slot.is_gone or slot.local.shape != shadow.shape:
            return True
        return self.storage.place_of(slot) != (shadow.device, shadow.dtype)

    def _new(self, slot: Slot) -> Tensor:
        live = slot.local.detach()
        if self.storage.averages(slot) and group_class(slot, self.storage).copies:
            return live
        device, dtype = self.storage.place_of(slot)
        return live.to(device, dtype, copy=True)

    def _as_in_the_model(self, tensors: list[Tensor]) -> list[Tensor]:
        if not self.is_sharded:
            return tensors
        pairs = zip(self.slots, tensors, strict=True)
        return [like_model_tensor(slot.tensor, tensor) for slot, tensor in pairs]

    def _adapt(self) -> None:
        """Follow the model to its present dtypes and devices."""
        self._finish_groups()
        if (
            not self._is_grouped
            or self._has_come_back()
            or not all(group.is_current() for group in self._groups)
            or any(self._has_changed(i) for i in self._copied)
        ):
            self._regroup()

    @torch.inference_mode(False)
    @torch.no_grad()
    def _regroup(self) -> None:
        # Groups hold on to the tensors they were built from, so a replacement must
        # rebuild them.
        self._is_grouped = False
        for i, slot in enumerate(self.slots):
            if slot.is_gone and slot.is_buffer:
                continue
            if _begins_anew(slot, self.tensors[i]):
                self.tensors[i] = self._new(slot)
            live, shadow = None if slot.is_gone else slot.local, self.tensors[i]
            if live is None or live.shape != shadow.shape:
                raise RuntimeError(
                    f"{slot.name} was {list(shadow.shape)} when averaging began and is "
                    f"{'gone' if live is None else list(live.shape)} now; "
                    "call refresh() to continue with the model as it is."
                )
            self.tensors[i] = shadow.to(*self.storage.place_of(slot))
        would_notice = any(group.live() is None for group in self._groups)
        stale = [group for group in self._groups if not group.is_current()]
        if not would_notice and any(isinstance(group, FlatGroup) for group in stale):
            warnings.warn(
                "Part of the model was cast or moved out of its flat buffer, so its "
                "average has missed the steps since then; use flat=True only for "
                "models that keep their device and dtype.",
                stacklevel=2,
            )
        self._group()

    def _has_come_back(self) -> bool:
        return any(not self.slots[i].is_gone for i in self._gone)

    def _ungroup(self) -> None:
        self._groups = []
        self._indices: list[list[int]] = []
        self._copied: list[int] = []
        # Buffers that the model has removed, perhaps temporarily: not averaged.
        self._gone: list[int] = []
        self._by_owner: dict[int, list[int]] = {}
        self._is_grouped = False

    def _group(self) -> None:
        """Put the averaged tensors into groups, which may move them."""
        for group in self._groups:
            group.let_go()
        self._ungroup()
        for i, slot in enumerate(self.slots):
            self._by_owner.setdefault(id(slot.owner), []).append(i)
        self._gone = [i for i, slot in enumerate(self.slots) if slot.is_gone]
        averaged = set(self.averaged_indices)
        self._copied = [i for i in range(len(self.slots)) if i not in averaged]
        members: dict[tuple[type[Group], tuple[object, ...]], list[int]] = {}
        for i in self.averaged_indices:
            slot = self.slots[i]
            kind = group_class(slot, self.storage)
            # A group looks up either sharded or plain tensors, never both.
            alike = *kind.kind_of(slot), is_sharded(slot.tensor)
            place = self.tensors[i].dtype, slot.local.device
            members.setdefault((kind, alike + place), []).append(i)
        self._indices = list(members.values())
        for (kind, _), indices in members.items():
            shadow = [self.tensors[i] for i in indices]
            self._groups.append(kind([self.slots[i] for i in indices], shadow))
            for i, tensor in zip(indices, shadow, strict=True):
                self.tensors[i] = tensor
        self._is_grouped = True


class Mark:
    """One element of each parameter, copied without waiting for an accelerator."""

    def __init__(self) -> None:
        self._on_host: dict[str, complex] = {}
        self._elsewhere: dict[str, Tensor] = {}

    def add(self, name: str, number: Tensor) -> None:
        """Add an element of one parameter, a view until :meth:`copied`."""
        if number.is_cpu:
            self._on_host[name] = number.item()
        else:
            self._elsewhere[name] = number

    def copied(self) -> "Mark":
        """Copy all views together, with one call per dtype and device."""
        kinds: dict[tuple[object, ...], list[str]] = {}
        for name, number in self._elsewhere.items():
            kinds.setdefault((number.dtype, number.device), []).append(name)
        for names in kinds.values():
            copies = torch.stack([self._elsewhere[name] for name in names]).unbind()
            self._elsewhere.update(zip(names, copies, strict=True))
        return self

    def equals(self, other: "Mark") -> bool:
        """Whether the elements are equal; this waits for the accelerator."""
        return self._numbers() == other._numbers()

    def _numbers(self) -> dict[str, complex]:
        elsewhere = {name: number.item() for name, number in self._elsewhere.items()}
        return self._on_host | elsewhere


def _doubt(groups: list[Group]) -> None:
    """Have groups checked by the next switch: others may now write their averages."""
    for group in groups:
        group.is_finite = None


def _is_of(before: Slot, slot: Slot) -> bool:
    """Whether a slot of a changed model has the tensor that a slot had before."""
    if before.owner is slot.owner and before.key == slot.key:
        return True
    return before.owner.get(before.key) is slot.owner[slot.key]


def _begins_anew(slot: Slot, shadow: Tensor) -> bool:
    """Whether the buffer has a new shape, or has only now been allocated."""
    if slot.is_gone:
        return False
    has_grown = slot.is_buffer and slot.local.shape != shadow.shape
    return has_grown or (shadow.is_meta and not slot.local.is_meta)
