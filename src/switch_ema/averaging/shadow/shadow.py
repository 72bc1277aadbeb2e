"""The shadow: one averaged copy of a model's tensors, and its way in and out.

The shadow is a list of tensors beside a list of slots, never a second module, so
that models that cannot be deep-copied are no problem. Lists are built once; an
update looks the live tensors up and hands both lists to one kernel. Of a sharded
tensor the shadow has the part that this process holds.
"""

import warnings

import torch
from torch import Tensor

from switch_ema.averaging.distributed.fsdp import in_form_of, is_sharded
from switch_ema.averaging.kernels import torch_ops
from switch_ema.averaging.model.slots import Slot
from switch_ema.averaging.shadow.flat_group import FlatGroup
from switch_ema.averaging.shadow.groups import Group
from switch_ema.averaging.shadow.in_step import InStep
from switch_ema.averaging.shadow.kinds import MOVING, group_by_kind, kind_of
from switch_ema.averaging.shadow.storage import Storage
from switch_ema.averaging.step.blocks import Shadows
from switch_ema.averaging.view.swap import Swap, insist


class Shadow:
    """An averaged copy of the tensors in ``slots``; it starts equal to them."""

    def __init__(self, slots: list[Slot], storage: Storage) -> None:
        self.storage = storage
        self._swap: Swap | None = None
        self._in_step = InStep()
        self._occupy(slots)

    def average_(self, weight: float, step: int, in_step: bool = False) -> None:
        """``shadow += weight * (live - shadow)``; copies wait until they are needed.

        Args:
            weight: of the live weights.
            step: how many optimizer steps there have been.
            in_step: whether the optimizer has averaged :meth:`by_memory` already.
        """
        groups = self._due(in_step)
        lives = [group.live() for group in groups]
        if None in lives:
            self._adapt()
            groups = self._due(in_step)
            lives = [group.live() for group in groups]
        for group, live in zip(groups, lives, strict=True):
            assert live is not None
            group.average_(live, weight, step)
        self._copies_are_stale = True

    def _due(self, in_step: bool) -> list[Group]:
        return InStep.left(self._groups) if in_step else self._groups

    def by_memory(self) -> Shadows:
        """Return parameters with their shadows where both lie in memory alike."""
        return self._in_step.pairs(self._groups)

    @torch.no_grad()
    def read_(self) -> None:
        """``shadow = live``, buffers included."""
        self._adapt()
        torch_ops.copy_(self.tensors, [slot.local for slot in self.slots])
        self._copies_are_stale = False

    @torch.no_grad()
    def read_if_loaded_(self) -> None:
        """``shadow = live`` if somebody has set parameters since the last time.

        Buffers alone do not count: the first forward pass changes them, too.
        """
        self._adapt()
        for slot, shadow in zip(self.slots, self.tensors, strict=True):
            live = slot.local.to(shadow.device, shadow.dtype)
            if not slot.is_buffer and not torch.equal(live, shadow):
                self.read_()
                return

    def mark(self) -> list[complex]:
        """Return one live number of each parameter: others, once it is trained."""
        lives = [slot.local for slot in self.slots if not slot.is_buffer]
        return [
            live[(0,) * live.ndim].item()
            for live in lives
            if type(live) in torch_ops.PLAIN_TYPES and live.numel() and not live.is_meta
        ]

    @torch.no_grad()
    def write_(self, live_share: float = 0.0) -> None:
        """``live = live_share * live + (1 - live_share) * shadow`` where averaged."""
        self._adapt()
        live = [self.slots[i].local for i in self.averaged_indices]
        shadow = [self.tensors[i] for i in self.averaged_indices]
        if live_share:
            torch_ops.lerp_cast_(live, shadow, 1 - live_share)
        else:
            torch_ops.copy_(live, shadow)
        torch.clear_autocast_cache()

    @torch.no_grad()
    def first_non_finite(self) -> str | None:
        """Name the first averaged tensor that holds a NaN or an infinity."""
        self.settle()
        index = torch_ops.first_non_finite(
            [self.tensors[i] for i in self.averaged_indices]
        )
        return None if index is None else self.slots[self.averaged_indices[index]].name

    @property
    def swapped(self) -> bool:
        """Whether the average is in the model, and the live weights are here."""
        return self._swap is not None

    @torch.no_grad()
    def swap_in(self) -> None:
        """Put the average into the model and keep the live weights here."""
        if self._swap is not None:
            return
        self._adapt()
        self._copy_what_is_not_averaged()
        self._swap = Swap(self.slots, self.tensors)
        try:
            self._swap.enter()
        except BaseException:
            self.swap_out()
            raise

    @torch.no_grad()
    def swap_out(self) -> None:
        """Put the live weights back, bit for bit."""
        if self._swap is not None:
            try:
                insist(self._swap.leave)
            finally:
                self._swap = None

    def averages(self) -> list[Tensor]:
        """Return the tensors that hold the average now: the model's, if swapped in."""
        if self._swap is None:
            self.settle()
            self._copy_what_is_not_averaged()
            return self._in_the_models_form(self.tensors)
        kept, parked = self._in_the_models_form(self.tensors), self._swap.parked
        return [
            kept[i] if i in parked else slot.tensor for i, slot in enumerate(self.slots)
        ]

    def originals(self) -> list[Tensor]:
        """Return the tensors that hold the live weights now."""
        if self._swap is None:
            return [slot.tensor for slot in self.slots]
        parked = self._swap.parked
        kept = [parked.get(i, tensor) for i, tensor in enumerate(self.tensors)]
        return self._in_the_models_form(kept)

    @torch.no_grad()
    def settle(self) -> None:
        """Complete the last update, of which an offloaded shadow leaves a part."""
        for group in self._groups:
            group.finish()

    def renew(self, slots: list[Slot]) -> None:
        """Go on with other slots; of a known name and shape, the average is kept."""
        self.settle()
        known = {slot.name: t for slot, t in zip(self.slots, self.tensors, strict=True)}
        self._occupy(slots)
        with torch.no_grad():
            for slot, tensor in zip(slots, self.tensors, strict=True):
                old = known.get(slot.name)
                if old is not None and old.shape == tensor.shape and not old.is_meta:
                    tensor.copy_(old)

    @property
    def averaged_indices(self) -> list[int]:
        """Where in the lists the tensors stand that are averaged, not copied."""
        return [i for i, s in enumerate(self.slots) if self.storage.averages(s)]

    @torch.no_grad()
    def _copy_what_is_not_averaged(self) -> None:
        """Copy once after averaging, instead of at every step."""
        if self._copies_are_stale:
            averaged = set(self.averaged_indices)
            copied = [i for i in range(len(self.slots)) if i not in averaged]
            live = [self.slots[i].local for i in copied]
            torch_ops.copy_([self.tensors[i] for i in copied], live)
            self._copies_are_stale = False

    @torch.inference_mode(False)
    @torch.no_grad()
    def _occupy(self, slots: list[Slot]) -> None:
        self.slots = slots
        self.is_sharded = any(is_sharded(slot.tensor) for slot in slots)
        self.tensors = [self._new(slot) for slot in slots]
        self._copies_are_stale = False
        self._group()

    def _new(self, slot: Slot) -> Tensor:
        live = slot.local.detach()
        if self.storage.averages(slot) and kind_of(slot, self.storage) in MOVING:
            return live  # these groups copy it to where it will stay
        device, dtype = self.storage.place_of(slot)
        return live.to(device, dtype, copy=True)

    def _in_the_models_form(self, tensors: list[Tensor]) -> list[Tensor]:
        if not self.is_sharded:
            return tensors
        pairs = zip(self.slots, tensors, strict=True)
        return [in_form_of(slot.tensor, tensor) for slot, tensor in pairs]

    @torch.inference_mode(False)
    @torch.no_grad()
    def _adapt(self) -> None:
        """Follow the model to its present dtypes and devices."""
        self.settle()
        if any(map(_begins_anew, self.slots, self.tensors)):
            self.renew(self.slots)
        for i, slot in enumerate(self.slots):
            live, shadow = None if slot.is_gone else slot.local, self.tensors[i]
            if live is None or live.shape != shadow.shape:
                raise RuntimeError(
                    f"{slot.name} was {list(shadow.shape)} when averaging began and is "
                    f"{'gone' if live is None else list(live.shape)} now; "
                    "call refresh() to go on with the model as it is."
                )
            self.tensors[i] = shadow.to(*self.storage.place_of(slot))
        would_notice = any(group.live() is None for group in self._groups)
        stale = [group for group in self._groups if not group.is_current()]
        if not would_notice and any(isinstance(group, FlatGroup) for group in stale):
            warnings.warn(
                "A part of the model was cast or moved out of its flat buffer; its "
                "average has missed the steps since then. flat=True suits models that "
                "stay where they are.",
                stacklevel=2,
            )
        if stale:
            self._group()

    def _group(self) -> None:
        averaged = self.averaged_indices
        self._groups = group_by_kind(self.slots, self.tensors, averaged, self.storage)


def _begins_anew(slot: Slot, shadow: Tensor) -> bool:
    """Whether it is a cache that has grown, or had no memory until now."""
    if slot.is_gone:
        return False
    has_grown = slot.is_buffer and slot.local.shape != shadow.shape
    return has_grown or (shadow.is_meta and not slot.local.is_meta)
