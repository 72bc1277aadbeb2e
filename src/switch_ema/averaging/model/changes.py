"""Notices when a model gains or loses tensors, at the cost of one comparison."""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from typing import Any
from weakref import WeakMethod, ref

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.utils.hooks import RemovableHandle

from switch_ema.averaging._torch import buffers_of, children_of, parameters_of
from switch_ema.averaging.model.slots import (
    Filter,
    Place,
    Slot,
    all_slots,
    can_be_kept,
    select,
    without_views,
)


class Watch:
    """Counts assignments to the modules of averaged models.

    torch calls registration hooks for each assignment in the process, so an unchanged
    count means an unchanged model, without a walk through its modules at every update.
    Modules outside averaged models are ignored, because a forward pass may create them
    at every step, as ``self.layers[:n]`` creates a ModuleList. A module that joins a
    model later is noticed by the assignment to a watched module.
    """

    def __init__(self) -> None:
        self.changes = 0
        """Assignments of parameters and modules, and of buffers that are new."""
        self.buffers = 0
        """Assignments that replaced a buffer with another tensor."""
        self.is_blind = False
        """Whether compiled code assigns buffers, which is not counted."""
        self._started = False
        # By id, because a module may define equality by value; the weak reference
        # removes the id when the module is freed.
        self._watched: dict[int, ref[nn.Module]] = {}

    def start(self) -> None:
        """Begin to count, once per process."""
        if not self._started:
            self._started = True
            register_module_parameter_registration_hook(self._parameter_changed)
            register_module_module_registration_hook(self._child_changed)
            register_module_buffer_registration_hook(self._buffer_changed)

    def add(self, modules: Iterable[nn.Module]) -> None:
        """Count assignments to these modules too, as long as they exist."""
        watched = self._watched
        for module in modules:
            key = id(module)
            if key not in watched:
                watched[key] = ref(module, partial(_forget, watched, key))

    def _parameter_changed(self, module: nn.Module, name: str, value: Any) -> None:
        # Not in compiled code, which would have to guard the id and the count.
        if torch.compiler.is_compiling() or id(module) not in self._watched:
            return
        if parameters_of(module).get(name) is not value:
            self.changes += 1

    def _child_changed(self, module: nn.Module, name: str, value: Any) -> None:
        if torch.compiler.is_compiling() or id(module) not in self._watched:
            return
        if children_of(module).get(name) is not value:
            self.changes += 1

    def _buffer_changed(self, module: nn.Module, name: str, value: Any) -> None:
        if torch.compiler.is_compiling():
            self.is_blind = True  # to read a count here would compile at every step
            return
        if id(module) not in self._watched:
            return
        known = buffers_of(module).get(name)
        if known is not value:  # they are the same after an assignment such as +=
            self.buffers += 1
        # Modules replace buffers in forward; slots follow that by themselves.
        if known is None and value is not None:
            self.changes += 1


def _forget(
    watched: "dict[int, ref[nn.Module]]", key: int, reference: "ref[nn.Module]"
) -> None:
    # The id may have been reused by a new module.
    if watched.get(key) is reference:
        del watched[key]


watch = Watch()
"""The one counter of this process."""


class _LoadNotice:
    """Calls back when a module has loaded a state dict, as long as its owner exists.

    TorchScript modules have no such hooks; the module around one calls back instead.
    """

    def __init__(self, call: Callable[[nn.Module], None]) -> None:
        self._call = WeakMethod(call)

    def __call__(self, module: nn.Module, incompatible_keys: Any) -> None:
        """Call back with the loaded module."""
        call = self._call()
        if call is not None:
            call(module)
            for child in module.children():
                if isinstance(child, torch.jit.ScriptModule):
                    for part in child.modules():
                        call(part)

    def __reduce__(self) -> tuple[Any, ...]:
        """Become a function that does nothing.

        torch copies and pickles hooks with a module. The pickle must load where this
        library is not installed, so the function is one of the standard library.
        """
        return getattr, (nullcontext(), "__exit__")


def on_load(
    model: nn.Module, call: Callable[[nn.Module], None]
) -> list[RemovableHandle]:
    """Call a method with each module of a model that loads a state dict."""
    notice = _LoadNotice(call)
    return [
        module.register_load_state_dict_post_hook(notice)  # type: ignore[no-untyped-call]
        for module in model.modules()
        if not isinstance(module, torch.jit.ScriptModule)
    ]


class Structure:
    """The tensors of a model as they were when it was last looked at.

    Call :meth:`check` when ``changes`` differs from ``watch.changes``, or while
    ``lazy`` tensors are uninitialised. Updates compare these two directly: more would
    be too slow at every step.
    """

    def __init__(self, model: nn.Module, include: Filter, exclude: Filter) -> None:
        self._model = model
        self._filters = include, exclude
        watch.start()
        self.look()

    def look(self) -> None:
        """Read the model as it is now."""
        # A filter may name tensors that cannot be averaged anyway.
        named = all_slots(self._model, unusual=True)
        chosen = select(named, *self._filters)
        slots = [slot for slot in named if can_be_kept(slot.tensor)]
        self.slots: list[Slot] = without_views(
            [s for s in chosen if not s.is_lazy and can_be_kept(s.tensor)]
        )
        # Kept as slots: ids of places differ in a copy of the model.
        self._known = slots
        self.lazy = sum(slot.is_lazy for slot in slots)
        self._remember()

    def __getstate__(self) -> dict[str, Any]:
        """Copy everything that does not depend on object identity."""
        names = ("_model", "_filters", "slots", "lazy", "_known")
        return {name: vars(self)[name] for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore it; the model, perhaps half unpickled, is read later."""
        vars(self).update(state)
        watch.start()
        self.changes = -1
        self._tree: list[tuple[dict[str, Any], list[Any]]] = []
        self._sizes: list[tuple[dict[str, Any], int]] = []

    def _remember(self) -> None:
        """Record the modules and their tensor counts, to notice removals."""
        self.changes = watch.changes
        modules = list(self._model.modules())
        watch.add(modules)
        self._tree = [
            (dict_, list(dict_.values())) for dict_ in map(children_of, modules)
        ]
        owners = [*map(parameters_of, modules), *map(buffers_of, modules)]
        self._sizes = [(owner, len(owner)) for owner in owners]

    def _is_untouched(self) -> bool:
        """Whether nothing was assigned anywhere, and nothing removed here."""
        return (
            watch.changes == self.changes
            and not self.lazy
            and all(list(held.values()) == kept for held, kept in self._tree)
            and all(len(owner) == size for owner, size in self._sizes)
        )

    def check(self) -> bool:
        """Walk through the model; return whether the slots must be rebuilt.

        They must if lazy modules were initialised, or if buffers, such as caches, were
        added or removed.

        Raises:
            RuntimeError: parameters were added or removed.
        """
        if self._is_untouched():
            return False
        slots = all_slots(self._model)
        places = {slot.place: slot.is_buffer for slot in slots}
        known = {slot.place: slot.is_buffer for slot in self._known}
        new = [place for place in places if place not in known]
        gone = [place for place in known if place not in places]
        if not all((places | known)[place] for place in (*new, *gone)):
            raise RuntimeError(
                f"The model has changed since averaging began (new: {_few(new)}; gone: "
                f"{_few(gone)}); call refresh() to continue with the model as it is."
            )
        self._remember()
        return bool(new or gone) or sum(slot.is_lazy for slot in slots) < self.lazy


def _few(places: list[Place]) -> str:
    names = sorted(name for name, *_ in places)
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "") or "none"
