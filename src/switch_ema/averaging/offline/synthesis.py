"""Synthesises averages from the snapshots that :class:`PostHocEMA` writes.

This needs only the folder, neither the model nor the training that wrote it.
"""

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from switch_ema._checks import check_count
from switch_ema._files import write_atomically
from switch_ema.averaging.offline.confined import require_regular
from switch_ema.averaging.offline.profiles import PowerAverage, Profile, solve
from switch_ema.averaging.offline.soup import combine
from switch_ema.averaging.offline.streams import require_safetensors
from switch_ema.averaging.schedules.windows import sigma_rel_to_gamma

_FORMAT = "switch-ema posthoc 1"
"""Marks a snapshot, in the metadata of its file."""

_TOLERATED_RESIDUAL = 0.1
"""Relative error of the profile above which :func:`synthesize` warns."""


@dataclass(frozen=True)
class ProfileFit:
    """How well the stored snapshots fit a target profile."""

    step: int
    """The step at which it is wanted."""
    coefficients: dict[str, float]
    """The factor of each snapshot, by file name; they sum to 1."""
    residual: float
    """Relative L2 error of the profile: 0 is exact, above 0.1 is another average."""


def synthesize(
    folder: str | Path, profile: Profile, *, step: int | None = None
) -> dict[str, Tensor]:
    """Return the average that another profile would have given.

    It is the combination of snapshots whose profile is nearest the wanted one, see
    :func:`switch_ema.averaging.offline.profiles.solve`; a UserWarning says if that
    misses by more than 10 %. Files are read one at a time, into one model in float64.

    Args:
        folder: where a :class:`PostHocEMA` has put its snapshots.
        profile: ``power_profile(sigma_rel)``, ``exponential_profile(decay)``,
            ``uniform_profile(last)``, or a callable ``profile(steps, t)`` that returns
            the weights of some of the steps 1..t (a float64 tensor), up to a factor.
        step: the ``t`` at which the average is wanted, best one that has a snapshot;
            None is the last. Later snapshots are not used.

    Returns:
        Tensors by name for ``model.load_state_dict``, on the CPU, in the dtypes of the
        files. What is copied, not averaged, is that of the latest snapshot used. Where
        ``include`` or ``exclude`` left tensors out, load with ``strict=False``.

    Raises:
        FileNotFoundError: there are no snapshots in the folder.
        ValueError: the step is outside of the snapshots, or a file in the folder is not
            a snapshot, or one of another model.
    """
    return synthesize_from(find_snapshots(folder), profile, step)


def fit_profile(
    folder: str | Path, profile: Profile, *, step: int | None = None
) -> ProfileFit:
    """Return what :func:`synthesize` would do and how well, without reading weights.

    Args:
        folder: where a :class:`PostHocEMA` has put its snapshots.
        profile: the wanted one, as for :func:`synthesize`.
        step: at which the average is wanted; None is the last.
    """
    snapshots = _up_to(step, find_snapshots(folder))
    return _fit(snapshots, profile, step)


def synthesize_from(
    snapshots: Sequence["Snapshot"], profile: Profile, step: int | None
) -> dict[str, Tensor]:
    """Do the work of :func:`synthesize` with some snapshots of a folder."""
    used = _up_to(step, snapshots)
    fit = _fit(used, profile, step)
    if fit.residual > _TOLERATED_RESIDUAL:
        warnings.warn(
            f"The target profile at step {fit.step} is missed by {fit.residual:.0%} "
            "(relative L2 error): it is too narrow, too wide or not smooth enough for "
            f"these {len(used)} snapshots; write snapshots more often, or choose a "
            "smoother profile.",
            stacklevel=3,
        )
    # Copied tensors come from the first state, so the latest goes first.
    latest_first = used[::-1]
    paths = [snapshot.path for snapshot in latest_first]
    factors = [fit.coefficients[path.name] for path in paths]
    layout = latest_first[0].read_layout()
    result = combine(paths, factors, layout.copied)
    return result | {name: result[own] for name, own in layout.tied.items()}


@dataclass(frozen=True, order=True)
class Snapshot:
    """One average at one step, in a file."""

    folder: Path
    step: int
    sigma_rel: float

    @property
    def path(self) -> Path:
        """The path of the file."""
        name = f"step{self.step:09d}-sigma{self.sigma_rel}.safetensors"
        return self.folder / name

    def write(self, tensors: dict[str, Tensor], metadata: Mapping[str, str]) -> None:
        """Write the file, completely or not at all."""
        metadata = dict(metadata) | {
            "format": _FORMAT,
            "step": str(self.step),
            "sigma_rel": str(self.sigma_rel),
        }
        files = require_safetensors("PostHocEMA")
        write_atomically(
            self.path, lambda file: files.save_file(tensors, file, metadata)
        )

    def read_layout(self) -> "_Layout":
        """Read which tensors of the file are averaged, copied or tied."""
        files = require_safetensors("PostHocEMA")
        with files.safe_open(self.path, framework="pt") as file:
            metadata = file.metadata()
            names = list(file.keys())
            dtypes = {file.get_slice(name).get_dtype() for name in names}
        try:
            copied, tied = (json.loads(metadata[key]) for key in ("copied", "tied"))
            is_layout = {*copied, *dict(tied).values()} <= {*names}
        except (KeyError, ValueError, TypeError, RecursionError):
            is_layout = False
        if not is_layout:
            raise ValueError(
                f"{self.path} is damaged: it does not say which of its tensors are "
                "averaged, and which are copied or tied."
            )
        return _Layout(copied, tied, 2**-8 if "BF16" in dtypes else 2**-24)


@dataclass(frozen=True)
class _Layout:
    """Which tensors of a snapshot are averaged, copied or tied."""

    copied: list[str]
    """Names of tensors that are not averaged."""
    tied: dict[str, str]
    """Further names of tensors, and the names under which they are stored."""
    precision: float
    """Relative rounding error of the coarsest tensors."""


def find_snapshots(folder: str | Path) -> list[Snapshot]:
    """List the snapshots in a folder, by step.

    Raises:
        FileNotFoundError: there are none, or no folder.
        ValueError: a safetensors file in it is not a snapshot.
    """
    folder = Path(folder)
    found = sorted(_identify(path) for path in folder.glob("*.safetensors"))
    if not found:
        raise FileNotFoundError(f"There are no snapshots of PostHocEMA in {folder}.")
    return found


def _identify(path: Path) -> Snapshot:
    files = require_safetensors("PostHocEMA")
    require_regular(path)
    try:
        with files.safe_open(path, framework="pt") as file:
            metadata: dict[str, Any] = file.metadata() or {}
        snapshot = Snapshot(
            path.parent, int(metadata["step"]), float(metadata["sigma_rel"])
        )
        known = metadata["format"] == _FORMAT and snapshot.path == path
    except OSError:
        raise
    except Exception:  # not safetensors (it has no public base class), or not ours
        known = False
    if not known:
        raise ValueError(
            f"{path} is not a snapshot of PostHocEMA, or was renamed; keep other "
            "safetensors files out of the folder."
        )
    return snapshot


def _up_to(step: int | None, snapshots: Sequence[Snapshot]) -> list[Snapshot]:
    """Leave out snapshots after ``step``, which must not be after the last one."""
    if step is None:
        return list(snapshots)
    first, last = snapshots[0].step, snapshots[-1].step
    if not first <= check_count("step", step) <= last:
        raise ValueError(
            f"step must be in [{first}, {last}], the steps with snapshots in "
            f"{snapshots[0].folder}, got {step}."
        )
    return [snapshot for snapshot in snapshots if snapshot.step <= step]


def _fit(used: Sequence[Snapshot], profile: Profile, step: int | None) -> ProfileFit:
    step = used[-1].step if step is None else step
    stored = [PowerAverage(s.step, sigma_rel_to_gamma(s.sigma_rel)) for s in used]
    precision = used[-1].read_layout().precision
    coefficients, residual = solve(stored, profile, step, precision)
    names = [snapshot.path.name for snapshot in used]
    return ProfileFit(step, dict(zip(names, coefficients, strict=True)), residual)
