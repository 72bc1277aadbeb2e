"""Post-hoc EMA: choose the length of the average after training (Karras et al., 2024).

During training, two power-function averages are kept and written to a folder now and
then. Afterwards :func:`synthesize` combines those snapshots into the average that any
other profile would have given, without training again.

The paper: https://arxiv.org/abs/2312.02696, section 3.
"""

import json
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from switch_ema.averaging import soup
from switch_ema.averaging.averager import Averager
from switch_ema.averaging.checkpoint import StateMismatch
from switch_ema.averaging.naming import plain_name
from switch_ema.averaging.profiles import (
    PowerAverage,
    Profile,
    sigma_rel_to_gamma,
    solve,
)
from switch_ema.averaging.shadow import Shadow
from switch_ema.averaging.switching import ScheduleLike, as_schedule
from switch_ema.averaging.validation import check_count

FORMAT = "switch-ema posthoc 1"
"""The ``format`` in the metadata of each snapshot file."""


class PostHocEMA(Averager):
    """Keep power-function averages, and snapshots of them to choose from later.

    For each ``sigma_rel``, with ``t = 1`` at the first step and ``gamma`` from
    :func:`~switch_ema.averaging.profiles.sigma_rel_to_gamma`:

        beta = (1 - 1/t) ** (gamma + 1),    average = beta * average + (1 - beta) * live

    so that the length of the average grows with training and the initial weights
    are forgotten at once. The averaged model is that of the first ``sigma_rel``.

    A snapshot is one safetensors file per ``sigma_rel``, in the shadow's dtype, with
    what is averaged (under ``include`` and ``exclude``) or copied, and persistent.
    The folder belongs to one training: what it holds of another course of events,
    such as the steps after the checkpoint resumed from, is renamed to ``*.stale`` at
    the next snapshot. With torch.distributed, rank 0 writes.

    Args:
        model: see :class:`Averager`. safetensors has no complex128.
        optimizer: see :class:`Averager`.
        folder: where snapshots go; made at the first one.
        sigma_rel: widths of the averages, as a share of the training so far: different
            numbers in (0, 0.2886]. Two are enough for most profiles.
        every: when to write: epochs, ``Steps(n)``, or a callable of the number of
            finished epochs. Some 20 snapshots in all serve most profiles.
        options: the options of :class:`Averager`.

    >>> import tempfile
    >>> from switch_ema.averaging.profiles import power_profile
    >>> from switch_ema.averaging.switching import Steps
    >>> model, folder = nn.Linear(1, 1), tempfile.TemporaryDirectory()
    >>> posthoc = PostHocEMA(model, folder=folder.name, every=Steps(10))
    >>> for _ in range(100):
    ...     _ = model.weight.data.add_(1.0)  # what an optimizer would do
    ...     posthoc.update()
    >>> average = posthoc.synthesize(power_profile(0.075))
    >>> result = model.load_state_dict(average)
    >>> folder.cleanup()
    """

    name = "posthoc-ema"

    def __init__(
        self,
        model: nn.Module,
        optimizer: Any = None,
        *,
        folder: str | Path,
        sigma_rel: Sequence[float] = (0.05, 0.10),
        every: ScheduleLike = 1,
        **options: Any,
    ) -> None:
        self._folder = Path(folder)
        self._gammas = _gammas(sigma_rel)
        self._schedule = as_schedule(every, name="every")
        self._snapshots: list[int] = []
        super().__init__(model, optimizer, **options)
        _check_storable(self._shadow)
        # Laying the model out flat once more would take it from the first shadow.
        storage = replace(self._shadow.storage, flat=False)
        self._further = [
            Shadow(self._structure.slots, storage) for _ in list(self._gammas)[1:]
        ]

    @property
    def current_decay(self) -> float:
        """The decay of the latest step, or of the first before there was one."""
        return self._decay(next(iter(self._gammas.values())))

    def snapshot(self) -> None:
        """Write the averages as they are now; what is due is written without this.

        Call it after the last step if that is no multiple of ``every``.
        """
        if self._steps == 0:
            raise RuntimeError("snapshot() needs an average; train for a step first.")
        if _writes():
            self._folder.mkdir(parents=True, exist_ok=True)
            self._set_stale_aside()
        for sigma_rel, shadow in zip(
            self._gammas, self._shadows().values(), strict=True
        ):
            tensors, metadata = self._contents(shadow)
            metadata |= {"step": str(self._steps), "sigma_rel": str(sigma_rel)}
            if _writes():
                path = self._folder / _file_name(self._steps, sigma_rel)
                _write(path, tensors, metadata)
        if self._steps not in self._snapshots:
            self._snapshots.append(self._steps)

    def synthesize(
        self, profile: Profile, *, step: int | None = None
    ) -> dict[str, Tensor]:
        """Return the average of another profile; see :func:`synthesize`.

        Only snapshots of this training's own past are used, also just after a resume
        from an earlier step, when the folder still has later ones.
        """
        stored = _read(self._folder)
        own = [snapshot for snapshot in stored if snapshot.step in self._snapshots]
        return _synthesize(self._folder, own, profile, step)

    def reset(self) -> None:
        """Start again from the live weights; earlier snapshots no longer count."""
        super().reset()
        self._snapshots = []

    def _after_step(self) -> None:
        gammas, shadows = self._gammas.values(), self._shadows().values()
        for gamma, shadow in zip(gammas, shadows, strict=True):
            shadow.average_(1 - self._decay(gamma), self._steps)
        if self._schedule.due_after_step(self.position):
            self.snapshot()

    def _after_epoch(self) -> bool:
        if self._steps and self._schedule.due_after_epoch(self.position):
            self.snapshot()
        return False

    def _shadows(self) -> dict[str, Shadow]:
        further = {f"shadow_{i}": s for i, s in enumerate(self._further, start=2)}
        return {"shadow": self._shadow} | further

    def _extra_state(self) -> dict[str, Any]:
        return {"sigma_rel": list(self._gammas), "snapshots": list(self._snapshots)}

    def _load_extra_state(self, state: Mapping[str, Any]) -> None:
        sigma_rel, snapshots = state.get("sigma_rel"), state.get("snapshots")
        if sigma_rel != list(self._gammas) or snapshots is None:
            raise StateMismatch(
                f"The state dict has sigma_rel={sigma_rel}, not {list(self._gammas)}. "
                "Nothing was loaded."
            )
        self._snapshots = list(snapshots)

    def _decay(self, gamma: float) -> float:
        return float((1 - 1 / max(self._steps, 1)) ** (gamma + 1))

    def _contents(self, shadow: Shadow) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Return what goes into a shadow's file: tensors, and how to read them."""
        persistent = {
            plain_name(self._model, name) for name in self._model.state_dict()
        }
        tensors, copied, tied = {}, [], {}
        for slot, average in zip(shadow.slots, shadow.averages(), strict=True):
            names = [n for n in slot.names if n in persistent or not slot.is_buffer]
            if not names:
                continue
            tensors[names[0]] = _whole(average)
            tied |= dict.fromkeys(names[1:], names[0])
            if not shadow.storage.averages(slot):
                copied.append(names[0])
        lists = {"copied": json.dumps(copied), "tied": json.dumps(tied)}
        return tensors, {"format": FORMAT} | lists

    def _set_stale_aside(self) -> None:
        own = {_file_name(step, s) for step in self._snapshots for s in self._gammas}
        for path in self._folder.glob("step*-sigma*.safetensors"):
            if path.name not in own:
                os.replace(path, path.with_name(f"{path.name}.stale"))


@dataclass(frozen=True)
class ProfileFit:
    """How well a wanted profile can be had from stored snapshots."""

    step: int
    """The step at which it is wanted."""
    coefficients: dict[str, float]
    """The factor of each snapshot, by file name; they sum to 1."""
    residual: float
    """Relative L2 error of the profile: 0 is exact, 1 has nothing in common."""


def fit_profile(
    folder: str | Path, profile: Profile, *, step: int | None = None
) -> ProfileFit:
    """Find out what :func:`synthesize` would do, without reading any weights.

    The arguments and errors are those of :func:`synthesize`.
    """
    folder = Path(folder)
    used, fit = _fit(folder, _read(folder), profile, step)
    return fit


def synthesize(
    folder: str | Path, profile: Profile, *, step: int | None = None
) -> dict[str, Tensor]:
    """Return the average that another profile would have given.

    The coefficients are those of :func:`switch_ema.averaging.profiles.solve`; a
    UserWarning says if they miss the wanted profile by more than 10 %. Files are read
    one at a time; memory is needed for one model in float64.

    Args:
        folder: the folder of a :class:`PostHocEMA`.
        profile: ``power_profile(sigma_rel)``, ``exponential_profile(decay)``,
            ``uniform_profile(last)``, or a callable of a float64 tensor of steps within
            1..t and of t that returns weights up to a common factor.
        step: the ``t`` at which the average is wanted; None is the last snapshot.
            Later snapshots are not used.

    Returns:
        Tensors by name, on the CPU in the dtypes of the files. What is not averaged is
        that of the latest snapshot used. ``model.load_state_dict`` takes it, with
        ``strict=False`` if ``include`` or ``exclude`` left tensors out.

    Raises:
        FileNotFoundError: there are no snapshots in the folder.
        ValueError: the step is not among or between the snapshots, or a file is of
            another model or not a snapshot.
    """
    folder = Path(folder)
    return _synthesize(folder, _read(folder), profile, step)
