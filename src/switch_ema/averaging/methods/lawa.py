"""Latest weight averaging (Kaddour, 2022)."""

from collections import deque
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from switch_ema._checks import check_count
from switch_ema.averaging.averager import Averager
from switch_ema.averaging.kernels import torch_ops
from switch_ema.averaging.model.slots import Filter
from switch_ema.averaging.schedules.intervals import ScheduleLike, as_schedule
from switch_ema.averaging.shadow.shadow import Shadow
from switch_ema.averaging.shadow.state import (
    StateMismatch,
    check_shadow_state,
    load_shadow_state,
    shadow_state,
)
from switch_ema.averaging.shadow.storage import Buffers
from switch_ema.averaging.step.hooks import Optimizers
from switch_ema.averaging.step.rounds import Count


class LAWA(Averager):
    """Average the last k snapshots equally; until the first, show the live model.

    It keeps k snapshots beside the average, so it needs k + 1 times the memory of an
    EMA (``dtype=torch.bfloat16`` and ``device="cpu"`` apply to all of them).

    Args:
        model: see :class:`Averager`.
        optimizer: see :class:`Averager`.
        k: the number of snapshots to average.
        every: epochs between snapshots, ``Steps(n)``, or a callable of the number of
            finished epochs.
        start: snapshots start after this, in the unit of ``every``.
        buffers: average "statistics", or "average" or "copy" all float buffers.
        dtype: the dtype of averaged parameters; None: the model's, at least float32.
        device: the device of the shadow; None: the model's.
        include: names, globs or a predicate: average only these tensors.
        exclude: names, globs or a predicate: do not average these tensors.
        flat: move the model into one block of memory for the fastest update.
        steps_per_epoch: steps per epoch, if needed before the first epoch ends.
        count: which steps count if there are several optimizers.

    >>> lawa = LAWA(nn.Linear(1, 1), k=2)
    >>> for _ in range(3):
    ...     _ = lawa.end_epoch()
    >>> lawa.averaged_models
    2
    """

    name = "lawa"
    display_name = "LAWA"
    colour = 5
    needs_steps = False

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizers = None,
        *,
        k: int = 5,
        every: ScheduleLike = 1,
        start: float = 0,
        buffers: Buffers = "statistics",
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        include: Filter = None,
        exclude: Filter = None,
        flat: bool = False,
        steps_per_epoch: int | None = None,
        count: Count = "round",
    ) -> None:
        self._snapshots: deque[Shadow] = deque(maxlen=check_count("k", k))
        self._every = as_schedule(every, name="every", start=start)
        super().__init__(
            model,
            optimizer,
            buffers=buffers,
            dtype=dtype,
            device=device,
            include=include,
            exclude=exclude,
            flat=flat,
            steps_per_epoch=steps_per_epoch,
            count=count,
        )

    @property
    def averaged_models(self) -> int:
        """Number of snapshots in the average."""
        return len(self._snapshots)

    @property
    def has_average(self) -> bool:
        """Whether there is a snapshot yet."""
        return len(self._snapshots) > 0

    @property
    def current_decay(self) -> float:
        """The weight of all but the newest snapshot."""
        return 1 - 1 / max(len(self._snapshots), 1)

    def members(self) -> Iterator[nn.Module]:
        """Yield the model holding each snapshot in turn, the oldest first.

        Ensembles average the predictions of these instead of the weights; see
        ``contrib.average_predictions``.
        """
        for snapshot in list(self._snapshots):
            with self._showing_copy(partial(shadow_state, snapshot)) as model:
                yield model

    def refresh(self) -> None:
        """Re-read the model's structure; new tensors start at their current values."""
        super().refresh()
        for snapshot in self._snapshots:
            snapshot.renew(self._structure.slots)

    def _after_step(self) -> None:
        if self._every.due_after_step(self.position):
            self._take()

    def _after_epoch(self) -> bool:
        if self._every.due_after_epoch(self.position):
            self._take()
        return False

    @torch.no_grad()
    def _take(self) -> None:
        for shot in self._snapshots:
            shot.follow_buffers()
        self._snapshots.append(self._new_shadow())
        # Tensors that are not averaged take the newest value, the rest the mean.
        self._shadow.read_()
        for indices, finite_only in (
            (self._shadow.averaged_parameters, False),
            (self._shadow.averaged_buffers, True),
        ):
            target = [self._shadow.tensors[i] for i in indices]
            sources = [[shot.tensors[i] for i in indices] for shot in self._snapshots]
            torch_ops.mean_(target, sources, finite_only)

    def _check_shows_loaded(self, extra: Mapping[str, Any]) -> None:
        if "snapshots" not in extra:
            raise StateMismatch(
                "load_average() needs snapshots, a list of averaged state dicts, or "
                "the average would not be shown."
            )

    def _extra_state(self) -> dict[str, Any]:
        return {"snapshots": [shadow_state(shot) for shot in self._snapshots]}

    def _check_extra_state(self, state: Mapping[str, Any]) -> None:
        if not isinstance(state["snapshots"], (list, tuple)):
            raise StateMismatch("The state's snapshots are not a list.")
        for kept in state["snapshots"]:
            check_shadow_state(self._shadow, kept, "snapshots")
        k = self._snapshots.maxlen
        if len(state["snapshots"]) > (k or 0):
            raise StateMismatch(
                f"The state has {len(state['snapshots'])} snapshots, more than k={k}."
            )

    def _load_extra_state(self, state: Mapping[str, Any]) -> None:
        self._snapshots.clear()
        for kept in state["snapshots"]:
            self._snapshots.append(self._new_shadow())
            load_shadow_state(self._snapshots[-1], kept)
