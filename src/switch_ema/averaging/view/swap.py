"""The average in the model's memory, and meanwhile the live weights in the shadow's."""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from switch_ema.averaging.distributed.fsdp import is_sharded
from switch_ema.averaging.model.slots import Slot
from switch_ema.averaging.view.exchange import Exchanged, exchange_


class Swap:
    """One exchange of a model's tensors with their averages, and the way back."""

    def __init__(self, slots: list[Slot], averages: list[Tensor]) -> None:
        self._slots, self._averages = slots, averages
        self._exchanged = Exchanged()
        self._is_shown = False
        self._places = [(slot.local.dtype, slot.local.device) for slot in slots]
        # Where the dtypes differ an exchange would round; park the live tensor.
        self.parked: dict[int, Tensor] = {
            i: slot.local.detach().to(average.device, copy=True)
            for i, (slot, average) in enumerate(zip(slots, averages, strict=True))
            if slot.local.dtype != average.dtype
        }

    def enter(self) -> None:
        """Put the averages into the model; after an exception, call :meth:`leave`."""
        self._exchange()
        for i in self.parked:
            self._slots[i].local.copy_(self._averages[i])
        torch.clear_autocast_cache()  # it has copies of the weights in half precision
        self._is_shown = True

    def leave(self) -> None:
        """Put the live weights back, bit for bit, before any Ctrl-C is heard."""
        gone = [slot.name for slot in self._slots if slot.is_gone]
        insist(
            self._undo_casts,
            self._save_changes,
            self._restore_parked,
            self._exchange_back,
            torch.clear_autocast_cache,
        )
        if gone:
            raise RuntimeError(
                f"{', '.join(gone[:3])} went out of the model inside averaged(); all "
                "else is put back. Call refresh() to go on with the model as it is."
            )

    def _exchange(self) -> None:
        exact = [i for i in self._present() if i not in self.parked]
        live = [self._slots[i].local for i in exact]
        exchange_(live, [self._averages[i] for i in exact], self._exchanged)

    def _exchange_back(self) -> None:
        if self._exchanged.yes:
            self._exchange()

    def _present(self) -> list[int]:
        return [i for i, slot in enumerate(self._slots) if not slot.is_gone]

    def _save_changes(self) -> None:
        """Keep what was done to a parked tensor's average, such as its statistics."""
        for i in self.parked.keys() & self._present() if self._is_shown else ():
            live, average = self._slots[i].local, self._averages[i]
            if not torch.equal(live, average.to(live.device, live.dtype)):
                average.copy_(live)
        self._is_shown = False

    def _restore_parked(self) -> None:
        for i in self.parked.keys() & self._present():
            self._slots[i].local.copy_(self.parked[i])

    def _undo_casts(self) -> None:
        """Undo a cast or move of the model made while the average was in it."""
        pairs = [(self._slots[i], *self._places[i]) for i in self._present()]
        # Buffers last, since FSDP2 casts them along with its shards.
        for slot, dtype, device in sorted(pairs, key=lambda pair: pair[0].is_buffer):
            tensor = slot.tensor
            if tensor.dtype != dtype or tensor.device != device:
                warnings.warn(
                    f"{slot.name} was cast or moved inside averaged(); it is put back, "
                    "and the average was rounded on the way.",
                    stacklevel=2,
                )
                if slot.sharder is not None and is_sharded(tensor):
                    slot.sharder.to(device, dtype)  # it has to know of its new shards
                else:
                    tensor.data = tensor.data.to(device, dtype)


def insist(*phases: Callable[[], None]) -> None:
    """Go through phases to the end, and only then pass on a Ctrl-C or an exit.

    A phase that is interrupted is repeated, so it must be one that can be.
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
