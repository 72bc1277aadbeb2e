"""Honest statistics: paired by seed, corrected over methods, decided beforehand.

The rule: a two-sided t-test of the differences to the baseline at the last epoch, seed
by seed, Holm's correction over the methods, and a verdict where p is below ``LEVEL``
and at least ``FEWEST`` seeds are paired. Seeds with a curve shorter than the longest or
an end without a usable value (finite, and not astronomical) are left out; n tells.

Near-ties are no evidence. Where the differences spread by less than the metric can
tell apart (one test sample, or the rounding of float32), their standard deviation says
nothing, and the exact sign test takes the place of the t-test.

Skew is allowed for. Where the differences show a long tail on the other side of their
mean, p and interval hold for Hall's test of ``skewed.py``, too, if there are enough
seeds for it; with fewer, sentences give its p beside the verdict.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from math import comb, nan, sqrt
from statistics import fmean, median, stdev

from scipy.optimize import brentq  # type: ignore[import-untyped]
from scipy.stats import nct, t  # type: ignore[import-untyped]

from switch_ema.analysis.intervals import half_width
from switch_ema.bench.recipe import is_usable
from switch_ema.bench.stats.skewed import (
    ALLOWED_FROM,
    skew_against,
    skewed_interval,
    skewed_p,
)

Seeds = Mapping[int, Sequence[float]]
Curves = Mapping[str, Seeds]
"""Values of one metric per epoch, by method and seed."""

# At 3%, plain against plain is called "no difference found" in 97% of comparisons,
# and with n = 8 and five methods a difference of two standard deviations (of the
# paired differences) is still found in 90%.
LEVEL = 0.03
CONFIDENCE = "97%"
"""Confidence of the intervals that are shown: one minus the level that decides."""
POWER = 0.8
"""Power at which :attr:`Difference.detectable` is computed."""
FEWEST = 3
"""Pairs of seeds that a verdict needs."""
_ROUNDING = 1e-6
"""Error of a metric, as a share of its values: eight units in float32's last place."""


@dataclass(frozen=True)
class Summary:
    """Mean (nan without seeds) and spread over seeds; spread is None below two."""

    mean: float
    sd: float | None
    n: int


@dataclass(frozen=True)
class Difference:
    """Paired difference to the baseline, positive if the method is better."""

    mean: float
    sd: float
    """0 where the differences spread by less than the metric can tell apart."""
    n: int
    low: float
    """Lower end of the confidence interval, nan without spread.

    It has the level that decides: 1 - ``LEVEL``, corrected over the methods as p is.
    So it leaves out zero where p after Holm is below ``LEVEL``, and only there.
    """
    high: float
    p: float
    """p-value of the paired test, two-sided."""
    p_holm: float
    """Corrected over the methods of the comparison."""
    detectable: float
    """Smallest true difference that n seeds would have shown with 80% power,
    at ``LEVEL`` over the number of methods (as Holm asks of the smallest p) and with
    the spread that was seen; nan without spread, and where the test allows for skew."""
    skew: float = 0.0
    """Skewness of differences with a long tail on the other side of their mean; 0 if
    they do not show it."""

    @property
    def allows_for_skew(self) -> bool:
        """Whether p and interval hold for skewed differences, too."""
        return self.skew != 0 and self.n >= ALLOWED_FROM

    @property
    def p_if_skewed(self) -> float:
        """Corrected p of the test that allows for skew, with few seeds, too."""
        if not self.skew or self.allows_for_skew:
            return self.p_holm
        p = skewed_p(self.mean, self.sd, self.n, self.skew)
        return max(self.p_holm, min(1.0, p * self._factor))

    @property
    def is_doubtful(self) -> bool:
        """Whether a test adjusted for skew would overturn the verdict."""
        return self.p_holm < LEVEL <= self.p_if_skewed

    @property
    def _factor(self) -> float:
        """What Holm has multiplied p by."""
        return self.p_holm / self.p if self.p > 0 else 1.0


@dataclass(frozen=True)
class SpeedUp:
    """Epochs until the baseline's final value was reached, seed by seed its own."""

    reached: int
    """Seeds in which the method reached it."""
    n: int
    epochs: float | None
    """Median over the seeds that reached it."""
    factor: float | None
    """The baseline's epochs to reach its own final value by the method's; median."""


@dataclass(frozen=True)
class MethodResult:
    """All there is to say of one method."""

    method: str
    last: Summary
    """At the last epoch, which decides."""
    best: Summary
    """At each seed's best epoch on the test data: flattering, never decides."""
    difference: Difference | None
    """None for the baseline and where fewer than two seeds are paired."""
    verdict: str
    """helps, hurts, no difference found, baseline, or too few seeds."""
    speed_up: SpeedUp | None
    """None for the baseline and where no seeds are paired."""


def compare(
    curves: Curves, *, higher_is_better: bool, baseline: str = "plain"
) -> list[MethodResult]:
    """Compare every method with the baseline, in the order of the curves.

    >>> plain, ema = {0: [1.0], 1: [2.0], 2: [3.5]}, {0: [1.5], 1: [2.7], 2: [3.0]}
    >>> results = compare({"plain": plain, "ema": ema}, higher_is_better=True)
    >>> [result.verdict for result in results]
    ['baseline', 'no difference found']
    """
    if baseline not in curves:
        raise ValueError(f"baseline must be in {[*curves]}, got {baseline!r}.")
    sign = 1 if higher_is_better else -1
    finished = _finished(curves, sign)
    base = finished[baseline]
    others = {method: own for method, own in finished.items() if method != baseline}
    paired = {m: own for m, own in others.items() if len(own.keys() & base.keys()) > 1}
    found = {m: _difference(own, base, len(paired)) for m, own in paired.items()}
    corrected = holm([difference.p for difference in found.values()])
    for method, p_holm in zip(found, corrected, strict=True):
        found[method] = _with_interval(replace(found[method], p_holm=p_holm))
    return [
        MethodResult(
            method=method,
            last=_summary([sign * c[-1] for c in own.values()]),
            best=_summary([sign * max(filter(is_usable, c)) for c in own.values()]),
            difference=found.get(method),
            verdict=verdict_of(found.get(method)) if method in others else "baseline",
            speed_up=_speed_up(own, base) if method in others else None,
        )
        for method, own in finished.items()
    ]


def head_to_head(
    curves: Curves, first: str, second: str, *, higher_is_better: bool
) -> Difference | None:
    """Compare two methods, positive if the first is better; p is not corrected.

    None where fewer than two seeds are paired, or one of the methods is not there.
    """
    two = {second: curves.get(second, {}), first: curves.get(first, {})}
    results = compare(two, higher_is_better=higher_is_better, baseline=second)
    return results[-1].difference


def paired_differences(
    curves: Curves, method: str, baseline: str, *, higher_is_better: bool
) -> dict[int, float]:
    """Return the difference to the baseline at the last epoch by seed.

    Only of seeds that count; it is positive where the method is better.
    """
    finished = _finished(curves, 1 if higher_is_better else -1)
    return _differences(finished[method], finished[baseline])


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values so that any false alarm at all is as rare as the level.

    The smallest of m is multiplied by m, the next by m - 1 and so on; the order stays.
    """
    corrected, largest = [0.0] * len(p_values), 0.0
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected


def verdict_of(difference: Difference | None) -> str:
    """Put a difference into one word, by its corrected p-value."""
    if difference is None or difference.n < FEWEST:
        return "too few seeds"
    if difference.p_holm >= LEVEL:
        return "no difference found"
    return "helps" if difference.mean > 0 else "hurts"


def _finished(curves: Curves, sign: int) -> dict[str, dict[int, list[float]]]:
    """Keep the curves that count, turned so that higher is better."""
    epochs = max((len(c) for own in curves.values() for c in own.values()), default=0)
    return {
        method: {
            seed: [sign * float(value) for value in curve]
            for seed, curve in own.items()
            if 0 < len(curve) == epochs and is_usable(curve[-1])
        }
        for method, own in curves.items()
    }


def _differences(own: Seeds, base: Seeds) -> dict[int, float]:
    return {seed: own[seed][-1] - base[seed][-1] for seed in own if seed in base}


def _difference(own: Seeds, base: Seeds, comparisons: int) -> Difference:
    """Test the seeds that both have; p_holm is still p, and there is no interval.

    Only their values count: a seed that explodes is its own method's affair.
    """
    differences = list(_differences(own, base).values())
    n, mean, sd = len(differences), fmean(differences), stdev(differences)
    pairs = [(own[seed][-1], base[seed][-1]) for seed in own if seed in base]
    roundings = [_ROUNDING * max(map(abs, pair)) for pair in pairs]
    step = _resolution([value for pair in pairs for value in pair])
    # A hair less than one step, since both are known up to rounding.
    if sd <= max(*roundings, 0.999 * step):
        p = _sign_test(differences, roundings)
        return Difference(mean, 0.0, n, nan, nan, p, p, nan)
    p = float(2 * t.sf(abs(mean) / sd * sqrt(n), n - 1))
    detectable = sd / sqrt(n) * _noncentrality(n - 1, LEVEL / comparisons)
    skew = skew_against(differences, mean, sd)
    found = Difference(mean, sd, n, nan, nan, p, p, detectable, skew)
    if not found.allows_for_skew:
        return found
    p = max(p, skewed_p(mean, sd, n, skew))
    return replace(found, p=p, p_holm=p, detectable=nan)


def _with_interval(difference: Difference) -> Difference:
    """Add the interval that leaves out zero if and only if p after Holm decides."""
    d = difference
    if not d.sd:
        return d
    level = LEVEL / d._factor  # as p was multiplied
    half = half_width(d.sd, d.n, level)
    low, high = d.mean - half, d.mean + half
    if d.allows_for_skew:  # p is the larger of two, so the interval holds both
        ends = skewed_interval(d.mean, d.sd, d.n, d.skew, level)
        low, high = min(low, ends[0]), max(high, ends[1])
    return replace(d, low=low, high=high)


def _sign_test(differences: Sequence[float], roundings: Sequence[float]) -> float:
    """Return the exact two-sided p of the signs; ties say nothing.

    Args:
        differences: one of each seed.
        roundings: the size up to which each of them is a tie.

    >>> _sign_test([0.3, 0.3, 0.3], [0.0] * 3), _sign_test([0.3, -0.3, 0.0], [0.0] * 3)
    (0.25, 1.0)
    """
    both = list(zip(differences, roundings, strict=True))
    above = sum(value > rounding for value, rounding in both)
    below = sum(value < -rounding for value, rounding in both)
    n, most = above + below, max(above, below)
    tail = sum(comb(n, count) for count in range(most, n + 1))
    return min(1.0, tail / 2.0 ** (n - 1))


def _resolution(values: Sequence[float]) -> float:
    """Return the step that all values are multiples of, as of counts; 0 if none.

    The accuracy on 360 samples has steps of 1 / 360. It is the greatest common divisor
    of the gaps between neighbouring values, up to rounding.

    >>> round(_resolution([0.25, 0.75, 1.0, 2.0]), 6)
    0.25
    """
    # Not the largest: beside one that has exploded all others would look alike.
    usual, step = _ROUNDING * median(map(abs, values)), 0.0
    gaps = [
        (high - low, max(usual, _ROUNDING * max(abs(low), abs(high))))
        for low, high in pairwise(sorted(values))
    ]
    for gap, rounding in sorted(gaps):
        # A gap that is known less well than the step says nothing about it.
        if gap > rounding and not 0 < step <= rounding:
            step = _common_divisor(gap, step, rounding)
    # Divisors near the rounding are found for any numbers.
    return step if step > 50 * usual else 0.0


def _common_divisor(a: float, b: float, rounding: float) -> float:
    """Euclid's algorithm for numbers that are known up to rounding."""
    while b > rounding:
        rest = a % b
        error = rounding * (a / b + 1)
        a, b = b, 0.0 if rest <= error or b - rest <= error else rest
    return a


@lru_cache
def _noncentrality(df: int, level: float) -> float:
    """Return the true mean, in standard errors, that the test finds with ``POWER``."""
    critical = t.isf(level / 2, df)
    return float(brentq(lambda nc: nct.sf(critical, df, nc) - POWER, 0, 5 * critical))


def _summary(values: Sequence[float]) -> Summary:
    mean = fmean(values) if values else nan
    return Summary(mean, stdev(values) if len(values) > 1 else None, len(values))


def _speed_up(own: Seeds, base: Seeds) -> SpeedUp | None:
    """Count epochs from 1; a seed's goal is the baseline's last value."""
    reached, seeds = [], own.keys() & base.keys()
    for seed in seeds:
        goal = base[seed][-1]
        first = [[v >= goal for v in curve] for curve in (own[seed], base[seed])]
        if True in first[0]:
            reached.append([hits.index(True) + 1 for hits in first])
    epochs = float(median(method for method, _ in reached)) if reached else None
    factor = median(plain / method for method, plain in reached) if reached else None
    return SpeedUp(len(reached), len(seeds), epochs, factor) if seeds else None
