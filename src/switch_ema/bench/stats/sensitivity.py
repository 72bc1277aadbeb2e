"""What a verdict hangs on: single seeds, and the number of seeds."""

from math import inf

from switch_ema.bench.stats.paired import (
    LEVEL,
    Curves,
    Difference,
    MethodResult,
    compare,
)
from switch_ema.bench.stats.sequential import pairs_to_decide
from switch_ema.bench.stats.verdicts import Verdict

MOST_SEEDS = 1000
"""More seeds than this are not recommended."""


def without_one_seed(
    curves: Curves, results: list[MethodResult], *, higher_is_better: bool
) -> dict[str, dict[int, Verdict]]:
    """Repeat a comparison without each of its seeds.

    Args:
        curves: values by method and seed.
        results: the comparison with all seeds.
        higher_is_better: direction of the metric.

    Returns:
        By method, the seeds without which the verdict would be another one, and which.
    """
    baseline = next(r.method for r in results if r.verdict == "baseline")
    effects = [r.difference.smallest_effect for r in results if r.difference]
    changed: dict[str, dict[int, Verdict]] = {result.method: {} for result in results}
    for left_out in sorted({seed for own in curves.values() for seed in own}):
        rest = {
            method: {seed: run for seed, run in own.items() if seed != left_out}
            for method, own in curves.items()
        }
        again = compare(
            rest,
            higher_is_better=higher_is_better,
            baseline=baseline,
            smallest_effect=effects[0] if effects else None,
            idle={result.method: result.idle for result in results if result.idle},
            sequential=any(r.difference.sequential for r in results if r.difference),
        )
        verdicts = {result.method: result.verdict for result in again}
        for result in results:
            if verdicts[result.method] != result.verdict:
                changed[result.method][left_out] = verdicts[result.method]
    return changed


def seeds_to_decide(difference: Difference, comparisons: int) -> float:
    """Return the seeds that decide if mean and spread stay as they are.

    Args:
        difference: an undecided one.
        comparisons: number of methods that are compared with the baseline.

    Returns:
        The number; infinity if it is astronomical, or unknown without spread.
    """
    d = difference
    if not d.sd:
        return inf
    return pairs_to_decide(
        d.mean, d.sd, LEVEL / comparisons, d.smallest_effect, sequential=d.sequential
    )
