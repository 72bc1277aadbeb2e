"""Swaps the average into the model's memory and the live weights into the shadow's."""

import warnings
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from switch_ema.averaging._torch import forget_computed_weights
from switch_ema.averaging.distributed.fsdp import is_sharded
from switch_ema.averaging.kernels import native
from switch_ema.averaging.kernels.spare_memory import SpareMemory
from switch_ema.averaging.kernels.torch_ops import PLAIN_TYPES, is_plain
from switch_ema.averaging.model.slots import Slot, can_be_kept
from switch_ema.averaging.view.exchange import Exchanged, Halves, exchange_


class Pairs(Protocol):
    """Tensors that are exchanged with their averages by address."""

    def exchange_table(self) -> "native.Table | None":
        """Return addresses and sizes; None if the tensors have changed."""

    def split_columns(self) -> "tuple[list[Tensor], list[Tensor], SpareMemory] | None":
        """Return float32 tensors, bfloat16 averages and memory; None for others."""

    def written(self) -> None:
        """Tell autograd that the live tensors were written."""


class Swap:
    """One exchange of a model's tensors with their averages, and the way back.

    Args:
        slots: the places of the model's tensors.
        averages: the averages, in the same order.
        groups: tensors that can be exchanged by address, with their indices.
    """

    def __init__(
        self,
        slots: list[Slot],
        averages: list[Tensor],
        groups: Sequence[tuple[Pairs, list[int]]] = (),
    ) -> None:
        self._slots, self._averages = slots, averages
        self._exchanged = Exchanged()
        self._is_shown = False
        self._groups = [
            (group, indices, table)
            for group, indices in groups
            if (table := group.exchange_table()) is not None
        ]
        grouped = {i for _, indices, _ in self._groups for i in indices}
        self._halves = [
            (indices, Halves(*columns))
            for group, indices in groups
            if not grouped.intersection(indices)
            and (columns := group.split_columns()) is not None
        ]
        grouped |= {i for indices, _ in self._halves for i in indices}
        self._single = [
            i for i, s in enumerate(slots) if i not in grouped and not s.is_gone
        ]
        self._undo_inference()
        self._places = {
            i: (live.dtype, live.device, type(live) in PLAIN_TYPES)
            for i in self._single
            for live in [slots[i].local]
        }
        self._present = list(self._single)
        self.left_out: list[Slot] = []
        """Slots that :meth:`leave` could not restore."""
        # Exchanging different dtypes would round the weights: park the live tensor.
        self.parked: dict[int, Tensor] = {
            i: slots[i].local.detach().to(averages[i].device, copy=True)
            for i in self._single
            if slots[i].local.dtype != averages[i].dtype
        }

    def enter(self) -> None:
        """Put the averages into the model; after an exception, call :meth:`leave`."""
        self._exchange()
        for _, halves in self._halves:
            halves.split()
        for i in self.parked:
            self._slots[i].local.copy_(self._averages[i])
        forget_computed_weights()
        self._is_shown = True

    def leave(self) -> None:
        """Restore the live weights, bit for bit; a Ctrl-C is deferred until then.

        A buffer that was removed or has a new shape, such as a grown cache, is left as
        it is.

        Raises:
            RuntimeError: a parameter was removed, or has a new shape or type. All other
                tensors are restored.
        """
        insist(
            self._join_halves,
            self._split_changed_groups,
            self._undo_inference,
            self._find_present,
            self._undo_casts,
            self._save_changes,
            self._restore_parked,
            self._exchange_back,
            forget_computed_weights,
        )
        lost = [slot for slot in self.left_out if not slot.is_buffer]
        if lost:
            what = "was removed" if lost[0].is_gone else "was replaced"
            raise RuntimeError(
                f"{lost[0].name} {what} inside averaged(), all other tensors are "
                "restored; call refresh() to continue with the model as it is."
            )

    def _exchange(self) -> None:
        exact = [i for i in self._present if i not in self.parked]
        live = [self._slots[i].local for i in exact]
        averages = [self._averages[i] for i in exact]
        tables = [table for _, _, table in self._groups]
        exchange_(live, averages, self._exchanged, tables)
        for group, _, _ in self._groups:
            group.written()

    def averages(self) -> list[Tensor]:
        """Return the averages: in the model, or in the shadow if parked."""
        pairs = enumerate(zip(self._slots, self._averages, strict=True))
        found = [own if i in self.parked else slot.local for i, (slot, own) in pairs]
        for i in (i for indices, _ in self._halves for i in indices):
            found[i] = found[i].to(self._averages[i].dtype)
        return found

    def originals(self) -> list[Tensor]:
        """Return the live weights; of those kept as halves, a copy."""
        found = [self.parked.get(i, one) for i, one in enumerate(self._averages)]
        for indices, halves in self._halves:
            for place, i in enumerate(indices):
                found[i] = halves.original(place)
        return found

    def _join_halves(self) -> None:
        """Restore weights kept as halves; park those that the model has moved."""
        for indices, halves in self._halves:
            for i, memory in zip(indices, halves.join(), strict=True):
                slot = self._slots[i]
                if slot.is_gone or not _is_same(slot.local, memory):
                    self._places[i] = memory.dtype, memory.device, True
                    self.parked[i] = memory
        self._single += [i for i in self.parked if i not in self._single]

    def _split_changed_groups(self) -> None:
        """Exchange the tensors of changed groups one by one."""
        kept = []
        for group, indices, _ in self._groups:
            table = group.exchange_table()
            if table is None:
                self._single += indices
                for i in indices:
                    average = self._averages[i]
                    self._places[i] = average.dtype, average.device, True
            else:
                kept.append((group, indices, table))
        self._groups = kept

    def _exchange_back(self) -> None:
        if self._exchanged.yes:
            self._exchange()

    def _find_present(self) -> None:
        self._present = [i for i in self._single if self._fits(i)]
        others = {*self._single}.difference(self._present)
        self.left_out = [self._slots[i] for i in sorted(others)]

    def _fits(self, index: int) -> bool:
        """Whether the model's tensor can take the live values."""
        slot = self._slots[index]
        if slot.is_gone or not can_be_kept(slot.tensor):
            return False
        live, (_, _, was_plain) = slot.local, self._places[index]
        has_its_type = type(live) in PLAIN_TYPES or not was_plain
        return has_its_type and live.shape == self._averages[index].shape

    def _save_changes(self) -> None:
        """Copy changes of parked averages, such as new statistics, to the shadow."""
        for i in self.parked.keys() & self._present if self._is_shown else ():
            live, average = self._slots[i].local, self._averages[i]
            if not torch.equal(live, average.to(live.device, live.dtype)):
                average.copy_(live)
        self._is_shown = False

    def _restore_parked(self) -> None:
        for i in self.parked.keys() & self._present:
            self._slots[i].local.copy_(self.parked[i])

    def _undo_inference(self) -> None:
        """Make buffers that were assigned in inference mode writable outside of it."""
        for slot in (self._slots[i] for i in self._single):
            if slot.is_buffer and not slot.is_gone and slot.tensor.is_inference():
                with torch.inference_mode(False):
                    slot.owner[slot.key] = slot.tensor.clone()

    def _undo_casts(self) -> None:
        """Undo a cast or move of the model made while the average was in it."""
        pairs = [(self._slots[i], *self._places[i][:2]) for i in self._present]
        # Buffers last, since FSDP2 casts them along with its shards.
        for slot, dtype, device in sorted(pairs, key=lambda pair: pair[0].is_buffer):
            tensor = slot.tensor
            if tensor.dtype != dtype or tensor.device != device:
                warnings.warn(
                    f"{slot.name} was cast or moved inside averaged(); it is restored, "
                    "but its average was rounded by the cast.",
                    stacklevel=2,
                )
                if slot.sharder is not None and is_sharded(tensor):
                    slot.sharder.to(device, dtype)  # FSDP2 must register its new shards
                else:
                    tensor.data = tensor.data.to(device, dtype)


def _is_same(tensor: Tensor, memory: Tensor) -> bool:
    """Whether a tensor still has this memory, in this layout."""
    return (
        is_plain(tensor)
        and tensor.dtype == memory.dtype
        and (tensor.shape, tensor.stride()) == (memory.shape, memory.stride())
        and tensor.data_ptr() == memory.data_ptr()
    )


def insist(*phases: Callable[[], None]) -> None:
    """Run all phases to the end, and only then raise a Ctrl-C or an exit.

    An interrupted phase is repeated, so phases must be repeatable.
    """
    interruption: BaseException | None = None
    for phase in phases:
        is_done = False
        while not is_done:
            try:
                phase()
                is_done = True
            except Exception:
                raise
            except BaseException as error:
                interruption = error
    if interruption is not None:
        raise interruption
