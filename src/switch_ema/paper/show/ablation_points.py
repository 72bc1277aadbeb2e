"""Settings of an ablation without a significant difference from the best."""

from dataclasses import dataclass
from math import sqrt

from switch_ema.bench.recipe import Metric
from switch_ema.bench.stats.paired import FEWEST, Difference, verdict_of
from switch_ema.bench.stats.summary import TaskSummary
from switch_ema.paper.tables.ablations import Ablation


@dataclass(frozen=True)
class AblationPoint:
    """One setting of a method on one task."""

    label: str
    """Label of the method in the comparison."""
    value: float
    """Value of the varied option."""
    mean: float
    error: float
    """Standard error of the mean; 0 for a single seed."""
    n: int
    gain: Difference | None
    """Gain over the row's baseline; positive is better."""
    is_best: bool
    within_noise: bool | None
    """Whether a paired, uncorrected test finds no difference from the best setting of
    the same method; None with too few seeds."""


def points_of(
    table: Ablation, task: TaskSummary, metric: Metric
) -> dict[str, list[AblationPoint]]:
    """Return the settings of each method on one task, by the value of the option.

    Settings that did not act, such as a switch after the last epoch, are left out.
    """
    families: dict[str, list[tuple[float, str]]] = {}
    results = {result.method: result for result in task.results[metric.name]}
    for label, result in results.items():
        setting = table.setting_of(label)
        if setting is not None and result.last.n and not result.idle:
            families.setdefault(setting[0], []).append((setting[1], label))
    better = metric.higher_is_better
    points: dict[str, list[AblationPoint]] = {}
    for name, settings in families.items():
        choose = max if better else min
        best = choose(settings, key=lambda pair: results[pair[1]].last.mean)[1]
        for value, label in sorted(settings):
            last = results[label].last
            to_best = task.against(best, label, metric)
            is_judged = to_best is not None and to_best.n >= FEWEST
            within = verdict_of(to_best) != "helps" if is_judged else None
            points.setdefault(name, []).append(
                AblationPoint(
                    label=label,
                    value=value,
                    mean=last.mean,
                    error=(last.sd or 0.0) / sqrt(last.n),
                    n=last.n,
                    gain=results[label].difference,
                    is_best=label == best,
                    within_noise=True if label == best else within,
                )
            )
    return points
