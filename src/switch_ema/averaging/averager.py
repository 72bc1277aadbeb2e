"""The base class of all methods: counting, averaging, showing, saving, resuming."""

import copy
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Protocol
from weakref import WeakSet

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from switch_ema._checks import check_count
from switch_ema.averaging._signals import Uninterrupted
from switch_ema.averaging.distributed.ddp import (
    find_replica,
    has_uneven_data,
    share_buffers,
)
from switch_ema.averaging.distributed.fsdp import like_model_tensor, refuse_fsdp1
from switch_ema.averaging.distributed.ranks import (
    RankMismatch,
    Ranks,
    fingerprint,
    is_replicated,
    ranks_of,
)
from switch_ema.averaging.model.changes import Structure, on_load, watch
from switch_ema.averaging.model.names import unwrap
from switch_ema.averaging.model.slots import Filter
from switch_ema.averaging.offline import export
from switch_ema.averaging.schedules.progress import COUNTERS, Counters, Position
from switch_ema.averaging.shadow.shadow import Mark, Shadow
from switch_ema.averaging.shadow.state import (
    StateMismatch,
    check_shadow_state,
    check_state,
    load_shadow_state,
    shadow_state,
    snapshot,
)
from switch_ema.averaging.shadow.storage import Buffers, as_storage
from switch_ema.averaging.step.forgotten_update import MANY_STEPS, ForgottenUpdate
from switch_ema.averaging.step.hooks import (
    Optimizers,
    StepHook,
    as_optimizers,
    check_parameters,
)
from switch_ema.averaging.step.rounds import Count, as_counting
from switch_ema.averaging.view import recalibration
from switch_ema.averaging.view.norms import Watched, counting_layers
from switch_ema.averaging.view.parametrized import Parametrized
from switch_ema.averaging.view.stage import STAGES_IN_USE, Block, Shown, stage_of
from switch_ema.averaging.view.teacher import Teacher

# Each rank checks only its own shard, so other ranks may have switched already.
# Continuing would train a mix of live and averaged shards: either stop, as after any
# error on one rank, or load or reset on all ranks.
_SHARDED_FAILURE = (
    "Other ranks may have switched; call load_state_dict() or reset() on all ranks to "
    "continue."
)

_STEPS_BETWEEN_COMPARISONS = 1000
"""How often ranks compare their counters if end_epoch() is never called."""

_NO_STEPS = (
    "The weights changed, but no step was counted in this epoch, so end_epoch() does "
    "nothing:"
)
_MISSED_STEPS = "pass the optimizer you train with, or call update() after each step."
_MISSED_ROUNDS = (
    "other optimizers have stepped, but this count waits for {}; choose count='round', "
    "'any', or the number of an optimizer that steps."
)


_UNEVEN_STEPS = (
    "With DDP's join() each rank averages only its own steps, so the averages differ "
    "between ranks; save the one of a rank with the most batches."
)

_EMPTY_EPOCH = (
    "end_epoch() was called again without a step since its last call, so it counted an "
    "empty epoch; call it once per epoch."
)

_NEVER_UPDATED = (
    f"An optimizer has made {MANY_STEPS} steps or more, but update() was never called, "
    "so the average is still the initial weights; pass the optimizer to the averager, "
    "or call update() after each step."
)

_TRAINED_NORM = (
    "{} ran in training mode inside averaged(), which changed {}; call model.eval() "
    "before evaluating and model.train() afterwards, or recalibrate(loader) to "
    "recompute the statistics."
)


class Holder(Protocol):
    """Something that holds a copy of an earlier average, to be shown again."""

    averager: "Averager"

    def follow_refresh(self) -> None:
        """Fit the copy to the model after a ``refresh()``."""


HOLDERS: "WeakSet[Holder]" = WeakSet()
"""All of them; an averager that is only half unpickled cannot know its own."""


class Averager(ABC):
    """Keeps averaged weights beside a model in training.

    A method derives from this class and defines :meth:`_after_step` and
    :attr:`current_decay`; if it acts on epochs, also :meth:`_after_epoch`.

    Args:
        model: any module, which may be wrapped in DDP or torch.compile.
        optimizer: one or several; ``update`` then runs after each real step. With
            several, ``count`` selects the steps that count. Averagers that share an
            optimizer run in the order of their construction. Without an optimizer,
            call ``update`` yourself.
        buffers: "statistics" averages the running statistics of normalisation layers
            with the weights and copies all other buffers, such as queues; "average"
            averages every floating-point buffer, "copy" none. Buffers of other dtypes
            are always copied.
        dtype: the dtype of the averaged parameters; None is the model's, but at least
            float32. bfloat16 halves the memory and is rounded so that it does not
            stall.
        device: the device of the shadow; None is the model's, "cpu" offloads it.
        include: names, globs or a predicate of (name) or (name, tensor): only these
            tensors are averaged; the averaged model has live values elsewhere.
            ``"trainable"`` selects tensors that require a gradient, such as adapters.
        exclude: tensors not to average, given in the same way.
        flat: move the model's weights and buffers into one block of memory for the
            fastest update. Use it for models that keep their device and dtype.
        steps_per_epoch: the length of an epoch, needed only to act inside the first
            epoch; afterwards the last epoch's length is used.
        count: which steps count with several optimizers. "round", the default, counts
            one iteration of the loop: it ends when all optimizers have stepped, or
            when one is about to step again; optimizers that did not step are then not
            waited for until they step. "all" counts once every optimizer has stepped,
            however often the others have. "any" counts every step of every optimizer.
            An optimizer, or its number in the order given, counts only its steps.
    """

    name: ClassVar[str]
    """The method's name in the registry."""
    display_name: ClassVar[str]
    """Its name in figures and pages. Lists read it from the source: a literal."""
    colour: ClassVar[int]
    """Which colour of the palette it has in figures and pages; also a literal."""
    active: ClassVar[bool] = False
    """Whether the method writes the live weights."""
    needs_steps: ClassVar[bool] = True
    """Whether the method averages steps, and so must be notified of them."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizers = None,
        *,
        buffers: Buffers = "statistics",
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        include: Filter = None,
        exclude: Filter = None,
        flat: bool = False,
        steps_per_epoch: int | None = None,
        count: Count = "round",
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be a torch.nn.Module, got {type(model)}.")
        if steps_per_epoch is not None:
            check_count("steps_per_epoch", steps_per_epoch)
        refuse_fsdp1(model)
        self._refuse_option(optimizer)
        optimizers = as_optimizers(optimizer)
        self._counting = as_counting(count, optimizers)
        storage = as_storage(buffers, dtype, device, flat)
        self._wrapped, self._model = model, unwrap(model)
        self._stage = stage_of(self._model)
        self._open_blocks: list[Block[nn.Module]] = []
        self._structure = Structure(self._model, include, exclude)
        if not (self._structure.slots or self._structure.lazy):
            raise ValueError(
                f"model must have tensors to average, but this {type(model).__name__} "
                "has neither parameters nor buffers that can be averaged."
            )
        self._shadow = Shadow(self._structure.slots, storage)
        self._view, self._live_view = self._new_views()
        self._replica = find_replica(model)
        self._ranks: Ranks | None = Ranks(self.name, model)
        self._compared_at = 0
        self._has_warned_of_join = self._has_warned_of_norm = False
        self._has_warned_of_empty_epoch = False
        self._counters = Counters(steps_per_epoch=steps_per_epoch)
        self._has_started = False
        # The reason why this average cannot be used after a failed switch.
        self._failure: str | None = None
        # One element of each parameter at the end of the last epoch, if known; shows
        # whether the model was trained without a counted step.
        self._mark: Mark | None = self._shadow.mark()
        self._fresh_state = self._extra_state()
        self._hook: StepHook | None = None
        if optimizers:
            self._connect(optimizers)
        # Removed at the first update. Without an optimizer, only a hook tells loaded
        # weights from a step.
        self._until_started: list[RemovableHandle | ForgottenUpdate] = []
        if not optimizers:
            self._until_started += on_load(self._model, self._follow_load)
            if self.needs_steps:
                self._until_started.append(ForgottenUpdate(self._model.parameters()))

    def __repr__(self) -> str:
        """Return the method, its configured and current decay, and its counters."""
        parts = [f"{name}={value!r}" for name, value in self._configured().items()]
        parts += [f"current_decay={self.current_decay:.6g}", f"steps={self.steps}"]
        parts += [f"epochs={self.epochs}", f"switches={self.switches}"]
        return f"{type(self).__name__}({', '.join(parts)})"

    def __getstate__(self) -> dict[str, Any]:
        """Copy everything except the connection to the optimizer.

        This makes an averager picklable, alone or inside a model; the copy has no
        optimizer until :meth:`attach_to` is called.
        """
        self._refuse_while_shown("Pickling or copying an averager")
        state = vars(self).copy()
        state["_ranks"] = None
        for name in ("_hook", "_stage", "_open_blocks", "_replica"):
            del state[name]
        del state["_until_started"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore what ``__getstate__`` returned."""
        vars(self).update(state)
        self._hook, self._until_started, self._open_blocks = None, [], []
        self._stage = stage_of(self._model)
        # A model that holds this averager may be only half unpickled here, so its
        # modules cannot be searched for a DDP wrapper.
        wrapped = self._wrapped
        shares = getattr(wrapped, "broadcast_buffers", False)
        self._replica = None
        if not self._has_started:
            self._until_started += self._on_load_if_whole()
        if isinstance(wrapped, DistributedDataParallel) and shares:
            self._replica = wrapped

    def _on_load_if_whole(self) -> list[RemovableHandle]:
        """Follow loaded weights, unless the model is only half unpickled."""
        try:
            return on_load(self._model, self._follow_load)
        except AttributeError:
            return []

    def _refuse_option(self, optimizer: object) -> None:
        """Raise if an option was given in the place of the optimizer."""
        if isinstance(optimizer, (int, float, str)):
            option = f"decay={optimizer!r}" if hasattr(self, "_decay") else "option=..."
            raise TypeError(
                f"optimizer must be a torch.optim.Optimizer (or several), got "
                f"{optimizer!r}; options need their name: write "
                f"{type(self).__name__}(model, {option})."
            )

    # To be defined by methods.

    @abstractmethod
    def _after_step(self) -> None:
        """React to an optimizer step; ``self.steps`` already counts it."""

    def _check_uncounted_step(self) -> None:
        """Raise if no real step can have preceded this ``update()``."""
        return None  # most methods cannot check this

    def _after_epoch(self) -> bool:
        """React to the end of an epoch; return whether live weights changed."""
        return False

    @property
    @abstractmethod
    def current_decay(self) -> float:
        """The weight of the old shadow in the latest averaging."""

    @property
    def has_average(self) -> bool:
        """Whether there is an average yet; until then the live weights are shown."""
        return True

    def _configured(self) -> dict[str, Any]:
        """Return the options that the method's text shows, such as its decay."""
        return {}

    def _shadows(self) -> dict[str, Shadow]:
        """Return all averaged copies by their name in the state dict."""
        return {"shadow": self._shadow}

    def _extra_state(self) -> dict[str, Any]:
        """Return the state needed to resume beyond shadows and counters."""
        return {}

    def _check_extra_state(self, state: Mapping[str, Any]) -> None:
        """Raise StateMismatch unless ``_load_extra_state`` can load the state."""
        return None  # most methods have no extra state

    def _load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Restore what ``_extra_state`` returned and ``_check_extra_state`` passed."""
        return None

    # Counting.

    @property
    def steps(self) -> int:
        """Optimizer steps so far."""
        return self._counters.steps

    @property
    def epochs(self) -> int:
        """Epochs finished so far."""
        return self._counters.epochs

    @property
    def switches(self) -> int:
        """How often the method has written the live weights."""
        return self._counters.switches

    @property
    def position(self) -> Position:
        """Where training stands."""
        return self._counters.position

    def update(self) -> None:
        """Count one optimizer step; not needed if an optimizer was given."""
        self._refuse_while_shown("update()")
        if self._hook is not None:
            warnings.warn(
                "update() already runs after each step of the optimizer given at "
                "construction; calling it as well counts steps twice.",
                stacklevel=2,
            )
        self._refuse_after_failure()
        self._follow_changes()
        self._check_uncounted_step()
        self._start()
        with Uninterrupted():
            self._count_step()

    def end_epoch(self) -> bool:
        """Count one epoch and act on its end, for example switch.

        Steps never synchronise with an accelerator; a switch does so once.

        Returns:
            Whether the live weights changed.

        Raises:
            RankMismatch: under DDP or FSDP2, the counters of other ranks differ.
        """
        self._refuse_while_shown("end_epoch()")
        self._refuse_after_failure()
        self._check_structure()
        with Uninterrupted():
            if self._hook is not None and self._hook.close_round():
                self._count_step()
        self._compare_ranks("end_epoch()")
        self._start()
        is_empty = self.position.step_in_epoch == 0 and self._mark is not None
        has_changed = is_empty and not self._is_at_mark()
        has_missed_steps = self.needs_steps and has_changed
        if has_missed_steps:
            waits_for = None if self._hook is None else self._hook.missing()
            advice = _MISSED_ROUNDS.format(waits_for) if waits_for else _MISSED_STEPS
            warnings.warn(f"{_NO_STEPS} {advice}", stacklevel=2)
        elif is_empty and not has_changed and self.steps:
            self._warn_of_empty_epoch()
        with self._counters.end_epoch():
            has_written = not has_missed_steps and self._after_epoch()
        self._mark = self._shadow.mark()
        return has_written

    def _is_at_mark(self) -> bool:
        """Whether the parameters are as they were at the end of the last epoch."""
        return self._mark is not None and self._mark.equals(self._shadow.mark())

    def _warn_of_empty_epoch(self) -> None:
        if not self._has_warned_of_empty_epoch:
            self._has_warned_of_empty_epoch = True
            warnings.warn(_EMPTY_EPOCH, stacklevel=3)

    def attach_to(self, optimizer: Optimizers, count: Count | None = None) -> None:
        """Run ``update`` after each step of another optimizer from now on.

        Call :meth:`detach` first. The average and all counters are kept.

        Args:
            optimizer: one or several.
            count: which steps count; None keeps the value given at construction.
        """
        if self._hook is not None:
            raise RuntimeError("Already attached to an optimizer; call detach() first.")
        optimizers = as_optimizers(optimizer)
        if not optimizers:
            raise ValueError("attach_to() needs an optimizer, got none.")
        wanted = self._counting if count is None else count
        self._counting = as_counting(wanted, optimizers)
        self._connect(optimizers)

    def _connect(self, optimizers: list[Any]) -> None:
        check_parameters(optimizers, self._wrapped)
        self._hook = StepHook(
            optimizers, self._before_step, self._count_step, self._counting
        )

    def detach(self) -> None:
        """Remove the hooks from the optimizer; the average stays as it is."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    # The optimizer calls the first hook before its step and the second after it; the
    # second does not repeat the checks of the first.

    def _before_step(self) -> None:
        self._refuse_while_shown("optimizer.step()")
        self._refuse_after_failure()
        self._follow_changes()
        if not self._has_started:
            self._follow_until_first_step()
            self._start()

    def _count_step(self) -> None:
        """Count and average; no signal may come between, so callers hold them back."""
        if self._replica is not None:
            share_buffers(self._replica)
        self._counters.steps += 1
        self._after_step()

    def _start(self) -> None:
        """Stop following the live weights: from now on the average is separate."""
        self._has_started = True
        for handle in self._until_started:
            handle.remove()
        self._until_started = []

    def _write_live(
        self, live_share: float = 0.0, reset_optimizer: bool = False
    ) -> None:
        """Write the average into the model, unless it is not finite."""
        since = self.steps - self._compared_at
        if self.epochs == 0 and since >= _STEPS_BETWEEN_COMPARISONS:
            self._compare_ranks("a switch")
        broken = self._shadow.first_non_finite()
        if broken is not None:
            message = (
                f"The average of {broken} is not finite, so it was not written into "
                "the model; the live weights are unchanged."
            )
            if self._shadow.is_sharded:
                self._failure = message = f"{message} {_SHARDED_FAILURE}"
            raise FloatingPointError(message)
        self._shadow.write_(live_share)
        self._counters.switches += 1
        if reset_optimizer and self._hook is not None:
            self._hook.forget_state()

    def _compare_ranks(self, place: str) -> None:
        """Raise on all ranks, before a switch, if their counters differ.

        Passive methods write nothing and may exist on some ranks only, so they do not
        wait for other ranks.
        """
        counts = {**self._counters.state(), "decay": self.current_decay}
        if not self.active and has_uneven_data(self._wrapped):
            # Ranks that ran out of data take no more steps; DDP syncs the weights.
            counts = {name: counts[name] for name in ("epochs", "switches")}
            if not self._has_warned_of_join:
                self._has_warned_of_join = True
                warnings.warn(_UNEVEN_STEPS, stacklevel=3)
        self._ranks_now().compare(place, counts, wait=self.active)
        self._compared_at = self.steps

    def _agreed(self, value: float) -> float:
        """Return rank 0's number, for a decision that all ranks must share.

        Without DDP or FSDP2, return the number itself; with them, all ranks must call.
        """
        return self._ranks_now().first_of(value)

    def _ranks_now(self) -> Ranks:
        if self._ranks is None:  # after pickling
            self._ranks = Ranks(self.name, self._wrapped)
        return self._ranks

    # Showing the average.

    def averaged(self) -> Block[nn.Module]:
        """Hold the average in the model for the length of a ``with`` block.

        The weights are exchanged in place, without a second copy of the model (where
        the shadow has another dtype, the live weights are kept beside it). They are
        restored bit for bit however the block is left. Blocks nest, also those of
        several averagers of one model, or of a model and a part of it; the innermost
        decides what is shown, and everything that it does not average is live.

        References taken inside the block, such as ``model.state_dict()`` or a
        ``torch.export`` program, hold the live weights again afterwards; use
        :meth:`averaged_state_dict` or :meth:`averaged_copy` to keep the average.
        """
        return Block(self._stage, self._shown, self._wrapped, self._check_norms)

    def show(self) -> nn.Module:
        """Hold the average in the model until :meth:`restore`, without a ``with``.

        For code that cannot use a block, such as a pair of callbacks; otherwise use
        :meth:`averaged`, which also restores after an exception.
        """
        block = self.averaged()
        model = block.__enter__()
        self._open_blocks.append(block)
        return model

    def restore(self) -> None:
        """Put back what was in the model before the last :meth:`show`."""
        if not self._open_blocks:
            raise RuntimeError("restore() has nothing to restore; call show() first.")
        self._open_blocks.pop().__exit__(None, None, None)

    def averaged_copy(self) -> nn.Module:
        """Return a separate module that holds the average, for example for a sampler.

        It is a deep copy of the unwrapped model, and later steps do not change it.
        """
        # A copy made in inference mode could not be trained.
        with self.averaged(), torch.inference_mode(False):
            return copy.deepcopy(self._model)

    def _check_use(self) -> None:
        """Warn once if the average is read but training does not reach it."""
        for handle in self._until_started:
            if isinstance(handle, ForgottenUpdate) and handle.suspected:
                self._until_started.remove(handle)
                warnings.warn(_NEVER_UPDATED, stacklevel=4)
                break

    def _shown(self) -> Shown | None:
        self._check_use()
        self._check_structure()
        self._follow_until_first_step()
        return self._view if self.has_average else self._live_view

    def _new_views(self) -> tuple[Watched, Watched]:
        """Return views of the average, and of the live weights until there is one."""
        slots, layers = self._structure.slots, counting_layers(self._model)
        shown = Parametrized(self._shadow, self._model, slots)
        return Watched(shown, layers), Watched(None, layers)

    def _check_norms(self) -> None:
        """Warn once if a forward pass inside a block gathered statistics."""
        layer = self._view.take_found() or self._live_view.take_found()
        if layer is not None and not self._has_warned_of_norm:
            self._has_warned_of_norm = True
            changed = "the running statistics of the average"
            if not self.has_average:
                changed = "the live running statistics, as there is no average yet"
            warnings.warn(_TRAINED_NORM.format(layer, changed), stacklevel=3)

    def averaged_state_dict(self, *, full: bool = False) -> dict[str, Any]:
        """Return a copy of the averaged model, for ``model.load_state_dict``.

        It shares no memory with the model or the shadow, has the model's dtypes, and
        its names have no prefixes of wrappers.

        Args:
            full: gather whole tensors on the CPU, for models sharded by FSDP2; without
                it each rank returns its own shards as DTensors. All ranks must call;
                rank 0 returns the tensors, the others an empty dict.
        """
        with self.averaged():
            return snapshot(self._model, full)

    def live_state_dict(self, *, full: bool = False) -> dict[str, Any]:
        """Return a copy of the live weights, also inside ``averaged()``.

        Args:
            full: gather whole tensors, as for :meth:`averaged_state_dict`.
        """
        with self._stage.showing(None):
            return snapshot(self._model, full)

    def _copy_average(self) -> dict[str, torch.Tensor]:
        """Copy the shadow, to be shown again later.

        Of sharded tensors, only the local part is copied.
        """
        self._follow_until_first_step()
        shadow = self._shadow if self.has_average else self._new_shadow()
        return shadow_state(shadow)

    def _fit_copy(self, copied: dict[str, torch.Tensor]) -> None:
        """Add to a copy what the model has gained since, and leave out what it lost."""
        shadow = self._shadow if self.has_average else self._new_shadow()
        for slot, average in zip(shadow.slots, shadow.averages(), strict=True):
            if slot.is_persistent:
                kept = copied.get(slot.name)
                if kept is None or kept.shape != average.shape:
                    copied[slot.name] = average.detach().clone()
        names = {slot.name for slot in shadow.slots if slot.is_persistent}
        for name in copied.keys() - names:
            del copied[name]

    def _showing_copy(
        self, get: Callable[[], Mapping[str, torch.Tensor]]
    ) -> Block[nn.Module]:
        """Hold a copy of an earlier average in the model, as ``averaged()`` does."""

        def choose() -> Shadow:
            self._check_structure()
            copied = get()  # now, since the check may have refreshed it
            self._check_copy(copied)
            shadow = self._new_shadow()
            load_shadow_state(shadow, copied)
            return shadow

        return Block(self._stage, choose, self._wrapped)

    def _check_copy(self, copied: Any) -> None:
        """Raise StateMismatch unless ``copied`` is an average of this model."""
        check_shadow_state(self._shadow, copied, "average")

    def _as_copy(self, parts: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Rebuild a copy from the plain local tensors of this process.

        Those that a :meth:`refresh` has removed from the model are left out.
        """
        slots = {slot.name: slot.tensor for slot in self._shadow.slots}
        return {
            name: like_model_tensor(slots[name], part)
            for name, part in parts.items()
            if name in slots
        }

    def _new_shadow(self) -> Shadow:
        """Return another shadow, initialised with the live weights."""
        storage = self._shadow.storage.without_flat()
        return Shadow(self._structure.slots, storage)

    def averaged_tensors(self) -> dict[str, torch.Tensor]:
        """Return the averaged tensors by plain name, without copying them.

        For code that reads the average at every step, such as a teacher. Do not write
        to the tensors; the next step changes them. Tied weights appear under each of
        their names. Dtypes and device are the shadow's.
        """
        self._follow_changes()
        self._follow_until_first_step()
        shadow = self._shadow
        return self._named(
            shadow.averages() if self.has_average else shadow.originals()
        )

    def live_tensors(self) -> dict[str, torch.Tensor]:
        """Return the live values of the same tensors, also inside ``averaged()``."""
        return self._named(self._shadow.originals())

    def _named(self, tensors: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        return {
            name: tensor.detach()
            for slot, tensor in zip(self._shadow.slots, tensors, strict=True)
            for name in slot.names
        }

    def teacher(self, *, training: bool | None = None) -> Teacher:
        """Return the averaged model as a function that leaves the model unchanged.

        Args:
            training: whether to run in training mode; None uses the model's mode.
        """
        return Teacher(self._model, self.averaged_tensors, training=training)

    def call(self, *inputs: Any, **keywords: Any) -> Any:
        """Run the model with the averaged weights, without exchanging them.

        No gradient is computed, and the model's mode is used; see :meth:`teacher`.

        Args:
            inputs: positional arguments of the model.
            keywords: keyword arguments of the model.
        """
        return self.teacher()(*inputs, **keywords)

    def save_averaged(self, path: str | os.PathLike[str]) -> None:
        """Write the averaged model to a safetensors file; see :mod:`.export`."""
        export.save_averaged(self, path)

    def recalibrate(
        self,
        loader: Iterable[Any],
        call: Callable[[nn.Module, Any], Any] | None = None,
    ) -> None:
        """Recompute the statistics of normalisation layers for the average.

        Under DDP all ranks must call; each may have its own batches, also of different
        number, and all get the statistics of all batches.

        Args:
            loader: batches, all of which are used.
            call: ``call(model, batch)`` runs the model. By default the model gets a
                tensor, the first item of a list or tuple, or a mapping as keywords.
        """
        if not self.has_average:
            raise RuntimeError(
                "There is no average to recalibrate yet; train until the method has "
                "averaged for the first time."
            )
        with self.averaged() as model:
            tracked = {id(slot.tensor) for slot in self._shadow.slots}
            recalibration.recalibrate(model, loader, call, tracked)

    # Saving and resuming.

    def state_dict(self) -> dict[str, Any]:
        """Return counters and averages, to resume bit for bit.

        It contains only numbers, strings and tensors, so ``torch.load`` reads it with
        ``weights_only=True``. It is a copy that later steps do not change.
        """
        self._check_use()
        self._follow_until_first_step()
        state: dict[str, Any] = {"method": self.name} | self._counters.state()
        state["waiting_for"] = self._hook.waiting_for if self._hook else []
        if self._hook and (resting := self._hook.resting):
            state["resting"] = resting
        for name, shadow in self._shadows().items():
            state[name] = shadow_state(shadow)
        return state | self._extra_state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned.

        Raises:
            StateMismatch: the state belongs to another method or model; the message
                lists missing, unexpected and misshapen tensors. Nothing has changed.
            RankMismatch: under DDP or FSDP2, other ranks load another state; nothing
                has changed on any rank.
        """
        self._check_before_loading(state)
        self._load_checked(state)

    def _check_before_loading(self, state: Mapping[str, Any]) -> None:
        """Raise on all ranks, before anything changes, if one cannot load its state."""
        self._refuse_while_shown("load_state_dict()")
        self._check_structure()
        problem = self._problem_with(state)
        if ranks := self._ranks_now():
            record = {"refused": str(problem)} if problem else self._record_of(state)
            waits = self.active or self._shadow.is_sharded
            try:
                ranks.compare("load_state_dict()", record, wait=waits)
            except RankMismatch as mismatch:
                raise problem or mismatch from None
        if problem is not None:
            raise problem

    def _load_checked(self, state: Mapping[str, Any]) -> None:
        with Uninterrupted():
            self._load_extra_state(state)
            for name, shadow in self._shadows().items():
                load_shadow_state(shadow, state[name])
            self._counters.load(state)
            if self._hook:
                self._hook.wait_for(state["waiting_for"], state.get("resting", ()))
            self._start()
            self._failure = self._mark = None

    def _problem_with(self, state: Mapping[str, Any]) -> StateMismatch | None:
        try:
            check_state(state, self.name, ["waiting_for", *self._fresh_state])
            for name, shadow in self._shadows().items():
                check_shadow_state(shadow, state.get(name), name)
            self._check_extra_state(state)
        except StateMismatch as problem:
            return problem
        return None

    def _record_of(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the part of a checked state that must be equal on all ranks."""
        record = {name: state[name] for name in COUNTERS}
        if is_replicated(self._wrapped):
            record["fingerprint of the averages"] = fingerprint(
                state[name][slot.name]
                for name, shadow in self._shadows().items()
                for slot in shadow.slots
                if not slot.is_buffer
            )
        return record

    def load_average(
        self,
        weights: Mapping[str, torch.Tensor],
        *,
        steps: int = 0,
        epochs: int = 0,
        **extra: Any,
    ) -> None:
        """Take over an average made by another library.

        Args:
            weights: averaged tensors by plain name; others keep their value.
            steps: optimizer steps that it has seen; a warm-up continues from there.
            epochs: epochs that it has seen.
            extra: other state of the method, such as ``averaged_models`` of SWA and
                ``snapshots`` of LAWA, without which these have no average to show.
        """
        if weights and not self.has_average:
            self._check_shows_loaded(extra)
        plain = {name: slot.name for slot in self._shadow.slots for name in slot.names}
        unknown = {*(weights.keys() - plain), *(extra.keys() - self._fresh_state)}
        if unknown:
            raise StateMismatch(
                f"There is no {', '.join(sorted(unknown))} to load the average into."
            )
        state = self.state_dict() | extra
        state["shadow"] |= {plain[name]: weights[name] for name in weights}
        state |= {"steps": steps, "epoch_start": steps, "epochs": epochs}
        self.load_state_dict(state)

    def _check_shows_loaded(self, extra: Mapping[str, Any]) -> None:
        """Raise StateMismatch if a loaded average would not be shown without more."""
        return None  # most methods show their shadow from the beginning

    def reset(self) -> None:
        """Restart the average from the live weights, with all counters at zero."""
        self._refuse_while_shown("reset()")
        self._check_structure()
        with Uninterrupted():
            self._counters.reset()
            if self._hook is not None:
                self._hook.forget_round()
            self._load_extra_state(self._fresh_state)
            for shadow in self._shadows().values():
                shadow.read_()
            self._failure, self._mark = None, self._shadow.mark()

    # Following the model.

    def refresh(self) -> None:
        """Follow a changed model; new tensors start at their current values.

        A layer that was replaced is new, too, even if it has the same shape. In copies
        of an earlier average, such as that of :class:`Best`, new tensors have the
        values with which they start.
        """
        self._refuse_while_shown("refresh()")
        self._structure.look()
        if self._ranks is not None and self._ranks.numbers != ranks_of(self._wrapped):
            self._ranks = None
        for shadow in self._shadows().values():
            self._renew(shadow)
        self._view, self._live_view = self._new_views()
        for holder in tuple(HOLDERS):
            if holder.averager is self:
                holder.follow_refresh()

    def _renew(self, shadow: Shadow) -> None:
        """Have an averaged copy follow the changed model."""
        shadow.renew(self._structure.slots)

    def _follow_changes(self) -> None:
        if watch.changes != self._structure.changes or self._structure.lazy:
            self._check_structure()

    def _check_structure(self) -> None:
        if not self._is_shown and self._structure.check():
            self.refresh()

    def _follow_until_first_step(self) -> None:
        """Keep the average equal to the model until the first step.

        Without an optimizer, weights that were set cannot be told from weights that a
        step has moved, so only :meth:`_follow_load` applies.
        """
        is_hooked = self._hook is not None
        if is_hooked and not self._has_started and not self._is_shown:
            for shadow in self._shadows().values():
                shadow.read_if_loaded_()

    def _follow_load(self, module: nn.Module) -> None:
        """Copy weights that are loaded before the first step into the average."""
        if not self._has_started and not self._is_shown:
            for shadow in self._shadows().values():
                shadow.read_module_(module)

    @property
    def _is_shown(self) -> bool:
        """Whether an open block may hide the live values of some tensors."""
        # Every step asks; with no block open anywhere, the stage need not be.
        return bool(STAGES_IN_USE) and self._stage.is_held

    def _refuse_while_shown(self, call: str) -> None:
        if self._is_shown:
            raise RuntimeError(
                f"{call} inside averaged() would mix averaged and live weights; leave "
                "the with block first."
            )

    def _refuse_after_failure(self) -> None:
        if self._failure is not None:
            raise FloatingPointError(self._failure)
