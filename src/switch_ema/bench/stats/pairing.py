"""Checks that seeds are what the statistics take them for: paired, and independent.

With the same seed, all methods must start from the same weights and the same first
batch. If they do not, the task or script draws random numbers outside its seed, and the
methods are compared unpaired. If different seeds end in the same weights, the seed has
no effect, and all seeds count as one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from switch_ema.bench.spec import SCRIPT, is_script
from switch_ema.bench.stats.paired import Curves, Seeds
from switch_ema.bench.text import counted, listed

_FAR = 2**32
"""Larger than any seed."""
_DIGITS = 6
"""Values with so many significant digits do not coincide by chance."""
_VALUES = 3
"""Nor do curves with so many different values."""


@dataclass(frozen=True)
class CellChecks:
    """Digests of one training, by seed, and its idle methods; empty if unknown."""

    methods: tuple[str, ...]
    stacked: bool
    weights: Mapping[int, str] = field(default_factory=dict)
    batch: Mapping[int, str] = field(default_factory=dict)
    end: Mapping[int, str] = field(default_factory=dict)
    idle: Mapping[str, str] = field(default_factory=dict)


def idle_methods(cells: Sequence[CellChecks]) -> dict[str, str]:
    """Return the methods that acted in no training, and why."""
    acted = {m for cell in cells for m in cell.methods if m not in cell.idle}
    return {
        method: why
        for cell in reversed(cells)
        for method, why in cell.idle.items()
        if method not in acted
    }


def checked_curves(
    curves: Mapping[str, Curves], cells: Sequence[CellChecks], task: str, baseline: str
) -> tuple[dict[str, Curves], list[str]]:
    """Return the curves as the seeds allow to compare them, and warnings.

    Args:
        curves: values by metric, method and seed.
        cells: the finished trainings.
        task: as typed.
        baseline: the method to compare with.
    """
    name = task.removeprefix(SCRIPT)
    if seeds := _seeds_without_effect(cells):
        fix = "its command" if is_script(task) else "its data, weights and batches"
        warning = (
            f"The seed has no effect on {name}: {counted(seeds, 'seed')} end in the "
            f"same weights, to the last bit, so they count as one and there is no "
            f"verdict; use the seed for all random numbers of {fix}."
        )
        once = {metric: only_first(methods) for metric, methods in curves.items()}
        return once, [warning]
    broken = _unpaired_groups(cells, baseline)
    if not broken:
        return dict(curves), []
    apart = {
        method: -1 - _FAR * number
        for number, group in enumerate(broken, start=1)
        for method in group
    }
    found: dict[str, Curves] = {
        metric: {
            method: _moved(own, apart[method]) if method in apart else own
            for method, own in methods.items()
        }
        for metric, methods in curves.items()
    }
    differ = listed(sorted(set().union(*broken.values())))
    warning = (
        f"{name} draws random numbers that its seed does not determine: with the same "
        f"seed, {listed(apart)} {'starts' if len(apart) == 1 else 'start'} from other "
        f"{differ} than {baseline}. Their seeds are not paired, so they are compared "
        "by Welch's unpaired test, which needs more seeds."
    )
    return found, [warning]


def only_first(methods: Curves) -> Curves:
    """Keep the first seed of each method."""
    return {method: dict([*own.items()][:1]) for method, own in methods.items()}


def are_copies(methods: Curves) -> bool:
    """Whether all seeds of each method have the same values, to the last digit.

    Values that may coincide by chance are no evidence: those of a few digits. Neither
    are methods without any difference, as after reaching 100%.

    >>> plain = {0: [0.712345], 1: [0.712345]}
    >>> are_copies({"plain": plain, "ema": {0: [0.7], 1: [0.7]}})
    True
    >>> are_copies({"plain": {0: [0.5], 1: [0.5]}, "ema": {0: [0.7], 1: [0.7]}})
    False
    """
    curves = {
        method: {tuple(c) for c in own.values()} for method, own in methods.items()
    }
    if any(len(found) > 1 for found in curves.values()):
        return False
    if (
        max(map(len, methods.values()), default=0) < 2
        or len(set.union(*curves.values())) < 2
    ):
        return False
    values = [value for found in curves.values() for curve in found for value in curve]
    return len(set(values)) >= _VALUES * len(curves) or any(
        len(repr(value).strip("-0.").replace(".", "")) >= _DIGITS for value in values
    )


def _moved(own: Seeds, offset: int) -> Seeds:
    """Rename seeds, so that they have no partner."""
    return {offset - seed: curve for seed, curve in own.items()}


def _seeds_without_effect(cells: Sequence[CellChecks]) -> int:
    """Count the seeds if in every group of methods all end alike; otherwise 0."""
    ends: dict[tuple[str, ...], dict[int, str]] = {}
    for cell in cells:
        if not cell.end:
            return 0
        ends.setdefault(cell.methods, {}).update(cell.end)
    alike = all(
        len(found) > 1 and len(set(found.values())) == 1 for found in ends.values()
    )
    return max(map(len, ends.values())) if ends and alike else 0


def _unpaired_groups(
    cells: Sequence[CellChecks], baseline: str
) -> dict[tuple[str, ...], set[str]]:
    """Return the groups of methods that start otherwise than the baseline, and in what.

    Stacked trainings are compared with stacked ones only, as a stack may convert types.
    """
    base = [cell for cell in cells if baseline in cell.methods]
    broken: dict[tuple[str, ...], set[str]] = {}
    for cell in cells:
        for other in base:
            if cell.stacked != other.stacked:
                continue
            for what, own, known in (
                ("weights", cell.weights, other.weights),
                ("batches", cell.batch, other.batch),
            ):
                if any(own[seed] != known[seed] for seed in own.keys() & known.keys()):
                    broken.setdefault(cell.methods, set()).add(what)
    return broken
