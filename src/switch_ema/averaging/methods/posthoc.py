"""Post-hoc EMA: choose the length of the average after training (Karras et al., 2024).

During training, it keeps a few power-function averages and writes snapshots of them to
a folder. Afterwards :func:`~switch_ema.averaging.offline.synthesis.synthesize`
combines these snapshots into the average that another profile would have given.

The paper: https://arxiv.org/abs/2312.02696, section 3.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from switch_ema.averaging.averager import Averager
from switch_ema.averaging.distributed import fsdp
from switch_ema.averaging.model.names import plain_name
from switch_ema.averaging.model.slots import Filter
from switch_ema.averaging.offline import synthesis
from switch_ema.averaging.offline.profiles import Profile
from switch_ema.averaging.offline.streams import require_safetensors
from switch_ema.averaging.schedules.decay import merged_weight
from switch_ema.averaging.schedules.intervals import ScheduleLike, as_schedule
from switch_ema.averaging.schedules.windows import sigma_rel_to_gamma
from switch_ema.averaging.shadow.shadow import Shadow
from switch_ema.averaging.shadow.state import StateMismatch
from switch_ema.averaging.shadow.storage import Buffers
from switch_ema.averaging.step.hooks import Optimizers
from switch_ema.averaging.step.rounds import Count


class PostHocEMA(Averager):
    """Keep power-function averages, and snapshots of them to choose from later.

    For each ``sigma_rel``, with ``t = 1`` at the first step and ``gamma`` from
    :func:`~switch_ema.averaging.schedules.windows.sigma_rel_to_gamma`::

        beta = (1 - 1/t) ** (gamma + 1)
        average = beta * average + (1 - beta) * live

    The average grows longer with training and gives the initial weights no weight. The
    averaged model is that of the first ``sigma_rel``.

    A snapshot is one safetensors file per ``sigma_rel``, in the dtype of the shadow.
    The folder belongs to one training: the next snapshot renames files that this
    training has not written, such as those of steps after the checkpoint it resumed
    from, to ``*.stale``. With torch.distributed, rank 0 writes.

    Args:
        model: see :class:`Averager`. Its dtypes must be ones that safetensors can
            store: all real ones and complex64, not complex128.
        optimizer: see :class:`Averager`.
        folder: where snapshots go; created at the first one.
        sigma_rel: widths of the averages, as shares of the training so far: distinct
            numbers in (0, 0.2886]. Two are enough.
        every: epochs between snapshots, ``Steps(n)``, or a callable of the number of
            finished epochs. More snapshots allow narrower profiles.
        buffers: average "statistics", or "average" or "copy" all float buffers.
        dtype: the dtype of averaged parameters; None: the model's, at least float32.
        device: the device of the shadow; None: the model's.
        include: names, globs or a predicate: average only these tensors.
        exclude: names, globs or a predicate: do not average these tensors.
        flat: move the model into one block of memory for the fastest update.
        steps_per_epoch: steps per epoch, if needed before the first epoch ends.
        count: which steps count if there are several optimizers.

    >>> import tempfile
    >>> from switch_ema.averaging.offline.profiles import power_profile
    >>> from switch_ema.averaging.schedules.intervals import Steps
    >>> model, folder = nn.Linear(1, 1), tempfile.TemporaryDirectory()
    >>> posthoc = PostHocEMA(model, folder=folder.name, every=Steps(10))
    >>> for _ in range(100):
    ...     _ = model.weight.data.add_(1.0)  # what an optimizer would do
    ...     posthoc.update()
    >>> model.load_state_dict(posthoc.synthesize(power_profile(0.075)))
    <All keys matched successfully>
    >>> folder.cleanup()
    """

    name = "posthoc-ema"
    display_name = "post-hoc EMA"
    colour = 7

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizers = None,
        *,
        folder: str | Path,
        sigma_rel: Sequence[float] = (0.05, 0.10),
        every: ScheduleLike = 1,
        buffers: Buffers = "statistics",
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        include: Filter = None,
        exclude: Filter = None,
        flat: bool = False,
        steps_per_epoch: int | None = None,
        count: Count = "round",
    ) -> None:
        # Fail now rather than at the first snapshot, after an epoch of training.
        require_safetensors("PostHocEMA")
        self._folder = Path(folder)
        self._gammas = _gammas(sigma_rel)
        self._every = as_schedule(every, name="every")
        self._snapshots: list[int] = []
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
        # Laid out flat a second time, the model would leave the first shadow's buffer.
        self._further = [self._new_shadow() for _ in range(1, len(self._gammas))]
        try:
            _check_storable(self._shadow)
        except ValueError:
            self.detach()
            raise

    @property
    def current_decay(self) -> float:
        """The decay of the latest step; before any step, that of the first."""
        return self._decay(next(iter(self._gammas.values())))

    def snapshot(self) -> None:
        """Write a snapshot now, in addition to the scheduled ones.

        Use it at the end of a training whose last step is not a multiple of ``every``.
        """
        if self.steps == 0:
            raise RuntimeError("snapshot() has nothing to write before the first step.")
        if fsdp.has_the_whole():
            self._folder.mkdir(parents=True, exist_ok=True)
            self._set_stale_aside()
        for sigma_rel, shadow in self._pairs(self._gammas):
            tensors, metadata = self._contents(shadow)
            if fsdp.has_the_whole():
                snapshot = synthesis.Snapshot(self._folder, self.steps, sigma_rel)
                snapshot.write(tensors, metadata)
        if self.steps not in self._snapshots:
            self._snapshots.append(self.steps)

    def synthesize(
        self, profile: Profile, *, step: int | None = None
    ) -> dict[str, Tensor]:
        """Return the average of another profile from the snapshots of this training.

        Later snapshots, which the folder may still have after a resume, are ignored.

        Args:
            profile: the profile to synthesise, as for :func:`synthesize`.
            step: the step of the average; None is the last.
        """
        found = synthesis.find_snapshots(self._folder)
        own = [snapshot for snapshot in found if snapshot.step in self._snapshots]
        if not own:
            raise FileNotFoundError(f"This training has no snapshot in {self._folder}.")
        return synthesis.synthesize_from(own, profile, step)

    def _after_step(self) -> None:
        for gamma, shadow in self._pairs(self._gammas.values()):
            weight = merged_weight(1 - self._decay(gamma), self.steps)
            shadow.average_(weight, self.steps)
        if self._every.due_after_step(self.position):
            self.snapshot()

    def _after_epoch(self) -> bool:
        if self.steps > 0 and self._every.due_after_epoch(self.position):
            self.snapshot()
        return False

    def _decay(self, gamma: float) -> float:
        return float((1 - 1 / max(self.steps, 1)) ** (gamma + 1))

    def _shadows(self) -> dict[str, Shadow]:
        further = {f"shadow_{i}": s for i, s in enumerate(self._further, start=2)}
        return {"shadow": self._shadow} | further

    def _pairs(self, values: Iterable[float]) -> Iterable[tuple[float, Shadow]]:
        return zip(values, self._shadows().values(), strict=True)

    def _extra_state(self) -> dict[str, Any]:
        return {"sigma_rel": list(self._gammas), "snapshots": list(self._snapshots)}

    def _check_extra_state(self, state: Mapping[str, Any]) -> None:
        steps, widths = state["snapshots"], state["sigma_rel"]
        if not isinstance(steps, list) or not all(isinstance(s, int) for s in steps):
            raise StateMismatch(f"The state's snapshots are not steps: {steps!r}.")
        if not isinstance(widths, list) or widths != list(self._gammas):
            raise StateMismatch(
                f"The state dict is of sigma_rel={state['sigma_rel']}, not "
                f"{list(self._gammas)}. Nothing was loaded."
            )

    def _load_extra_state(self, state: Mapping[str, Any]) -> None:
        self._snapshots = list(state["snapshots"])

    def _contents(self, shadow: Shadow) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Return the contents of a shadow's file: tensors, and how to read them."""
        model = self._model
        persistent = {plain_name(model, name) for name in model.state_dict()}
        tensors: dict[str, Tensor] = {}
        copied: list[str] = []
        tied: dict[str, str] = {}
        for slot, average in zip(shadow.slots, shadow.averages(), strict=True):
            names = [n for n in slot.names if n in persistent or not slot.is_buffer]
            if not names:
                continue
            whole = fsdp.whole(average).detach()
            if fsdp.has_the_whole():
                tensors[names[0]] = whole.cpu().contiguous()
            tied |= dict.fromkeys(names[1:], names[0])
            if not shadow.storage.averages(slot):
                copied.append(names[0])
        return tensors, {"copied": json.dumps(copied), "tied": json.dumps(tied)}

    def _set_stale_aside(self) -> None:
        own = {
            synthesis.Snapshot(self._folder, step, sigma_rel).path
            for step in self._snapshots
            for sigma_rel in self._gammas
        }
        for path in self._folder.glob("step*-sigma*.safetensors"):
            if path not in own:
                os.replace(path, path.with_name(f"{path.name}.stale"))


def _gammas(sigma_rel: Sequence[float]) -> dict[float, float]:
    """Return the gamma of each sigma_rel, in the order given."""
    if not isinstance(sigma_rel, Sequence) or not sigma_rel:
        raise ValueError(
            "sigma_rel must be one or more numbers such as (0.05, 0.1), "
            f"got {sigma_rel!r}."
        )
    values = [sigma_rel_to_gamma(width) for width in sigma_rel]
    gammas = dict(zip(map(float, sigma_rel), values, strict=True))
    if len(gammas) < len(sigma_rel):
        raise ValueError(f"sigma_rel must be different numbers, got {sigma_rel!r}.")
    return gammas


def _check_storable(shadow: Shadow) -> None:
    files = require_safetensors("PostHocEMA")
    for slot, tensor in zip(shadow.slots, shadow.tensors, strict=True):
        try:
            files.save({slot.name: torch.empty(0, dtype=tensor.dtype)})
        except Exception as error:  # which one depends on the version of safetensors
            raise ValueError(
                f"PostHocEMA cannot store {slot.name}: safetensors has no "
                f"{tensor.dtype}; leave it out with exclude."
            ) from error
