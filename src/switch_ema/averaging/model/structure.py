"""Notices when a model gains or loses tensors, at the price of one comparison."""

from torch import nn

from switch_ema.averaging.model.overlaps import without_views
from switch_ema.averaging.model.slots import Filter, Place, Slot, all_slots, select
from switch_ema.averaging.model.watch import watch


class Structure:
    """The tensors of a model as they were when it was last looked at."""

    def __init__(self, model: nn.Module, include: Filter, exclude: Filter) -> None:
        self._model = model
        self._filters = include, exclude
        watch.start()
        self.look()

    def look(self) -> None:
        """Take the model as it is now."""
        slots = all_slots(self._model)
        chosen = select(slots, *self._filters)
        self.slots: list[Slot] = without_views([s for s in chosen if not s.is_lazy])
        self._places = {slot.place: slot.is_buffer for slot in slots}
        self._lazy = sum(slot.is_lazy for slot in slots)
        self._changes = watch.changes

    def may_have_changed(self) -> bool:
        """Whether a closer look is due; this is all that an update pays for."""
        return bool(self._lazy) or self._changes != watch.changes

    def check(self) -> bool:
        """Walk through the model; return whether to take it as it is now.

        So it is where lazy modules have made their tensors, and where buffers have come
        or gone, as caches do.

        Raises:
            RuntimeError: there are parameters that are new, or gone.
        """
        slots = all_slots(self._model)
        places = {slot.place: slot.is_buffer for slot in slots}
        new = [place for place in places if place not in self._places]
        gone = [place for place in self._places if place not in places]
        if not all((places | self._places)[place] for place in (*new, *gone)):
            raise RuntimeError(
                f"The model has changed since averaging began (new: {_few(new)}; gone: "
                f"{_few(gone)}); call refresh() to go on with the model as it is."
            )
        self._changes = watch.changes
        return bool(new or gone) or sum(slot.is_lazy for slot in slots) < self._lazy


def _few(places: list[Place]) -> str:
    names = sorted(name for name, *_ in places)
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "") or "none"
