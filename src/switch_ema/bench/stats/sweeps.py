"""Settings of one task side by side: the best of each method, and tuning."""

from dataclasses import dataclass

from switch_ema.bench.stats.paired import (
    Difference,
    MethodResult,
    compare,
    head_to_head,
    verdict_of,
)
from switch_ema.bench.stats.summary import Sweep, TaskSummary
from switch_ema.bench.stats.verdicts import smallest_effect_of


def methods_of(sweep: Sweep) -> list[str]:
    """List the methods of a sweep, the baseline first."""
    point = sweep.points[0]
    return [result.method for result in point.results[point.metrics[0].name]]


def result_of(point: TaskSummary, method: str) -> MethodResult | None:
    """Return a method's result at a point; None if it has none yet."""
    results = point.results[point.metrics[0].name]
    return next((result for result in results if result.method == method), None)


def best_points(sweep: Sweep) -> dict[str, TaskSummary]:
    """Find the setting with the best mean of each method.

    Chosen on the same data that it is evaluated on, hence optimistic; ties go to the
    first.
    """
    metric = sweep.points[0].metrics[0]
    sign = 1 if metric.higher_is_better else -1
    best: dict[str, tuple[float, TaskSummary]] = {}
    for point in sweep.points:
        for result in point.results[metric.name]:
            if result.last.n:
                value = sign * result.last.mean
                if result.method not in best or value > best[result.method][0]:
                    best[result.method] = (value, point)
    return {method: point for method, (_, point) in best.items()}


def compare_bests(sweep: Sweep) -> list[MethodResult]:
    """Compare the methods, each at its best setting, paired by seed.

    Empty if the baseline has no value.
    """
    metric = sweep.points[0].metrics[0]
    best = best_points(sweep)
    baseline = methods_of(sweep)[0]
    if baseline not in best:
        return []
    found = {method: result_of(point, method) for method, point in best.items()}
    return compare(
        {method: point.curves[metric.name][method] for method, point in best.items()},
        higher_is_better=metric.higher_is_better,
        baseline=baseline,
        smallest_effect=smallest_effect_of(metric),
        idle={m: one.idle for m, one in found.items() if one is not None and one.idle},
    )


@dataclass(frozen=True)
class Survival:
    """A method's difference from the baseline before and after tuning."""

    method: str
    baseline: str
    untuned: Difference | None
    tuned: Difference | None

    @property
    def outcome(self) -> str:
        """Effect of tuning on a gain.

        One of: survives, does not survive, turns into a loss, appears, no gain,
        undecided.
        """
        before, after = verdict_of(self.untuned), verdict_of(self.tuned)
        if after == "helps":
            return "survives" if before == "helps" else "appears"
        if after == "undecided":
            return "undecided"
        if before == "helps":
            return "turns into a loss" if after == "hurts" else "does not survive"
        return "no gain"


def survivals(sweep: Sweep) -> list[Survival]:
    """Pair untuned and tuned differences from the baseline, by method.

    The last is Switch EMA vs EMA, which is not corrected over the methods.
    """
    if not sweep.is_tuned or len(sweep.points) < 2:
        return []
    untuned, tuned = sweep.points
    baseline, *methods = methods_of(sweep)
    found = []
    for method in methods:
        pair = result_of(untuned, method), result_of(tuned, method)
        differences = [None if one is None else one.difference for one in pair]
        found.append(Survival(method, baseline, *differences))
    first, second = (_named(methods, name) for name in ("switch-ema", "ema"))
    if first and second:
        metric = untuned.metrics[0]
        before, after = (
            head_to_head(
                point.curves[metric.name],
                first,
                second,
                higher_is_better=metric.higher_is_better,
                smallest_effect=smallest_effect_of(metric),
            )
            for point in sweep.points
        )
        found.append(Survival(first, second, before, after))
    return found


def _named(methods: list[str], name: str) -> str:
    """Find the first method with a name, with or without options."""
    return next((m for m in methods if m.partition(":")[0] == name), "")
