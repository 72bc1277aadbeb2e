"""Paired statistics, corrected over methods, with a rule fixed in advance.

The rule: a two-sided paired t-test of the differences from the baseline at the last
epoch, Holm's correction over the methods, and "helps" or "hurts" if p is below
``LEVEL`` with at least ``FEWEST`` pairs; otherwise "no difference" if the interval lies
within the smallest effect of interest (``verdicts.py``), else "undecided". Seeds whose
curve is shorter than the method's longest, or whose last value is not usable (not
finite, or astronomical), are excluded, which n shows. A method may train for longer
than another.

Near ties are no evidence. If the differences vary by less than the metric can resolve
(one test sample, or float32 rounding), their standard deviation is meaningless and an
exact sign test replaces the t-test. Their interval, for "no difference", takes the
resolution as the standard deviation; where it is that small, signs decide nothing.

Skew is accounted for. If the differences have a long tail opposite in sign to their
mean, p and interval also satisfy Hall's test (``skewed.py``) if there are enough seeds;
with fewer, reports print its p next to the verdict.

Seeds may be added until a verdict is settled. p-values and intervals must then be valid
at every look, for which ``sequential.py`` gives the levels of the same tests.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from math import comb, nan, sqrt
from statistics import fmean, median, stdev

from switch_ema.analysis import intervals
from switch_ema.analysis.intervals import half_width
from switch_ema.analysis.student import noncentrality, t_isf, t_sf
from switch_ema.bench.recipe import is_usable
from switch_ema.bench.stats.sequential import (
    anytime_p,
    anytime_sign_p,
    nominal_level,
)
from switch_ema.bench.stats.skewed import (
    ALLOWED_FROM,
    skew_against,
    skewed_interval,
    skewed_p,
)
from switch_ema.bench.stats.verdicts import OF_BASELINE, Verdict

Seeds = Mapping[int, Sequence[float]]
Curves = Mapping[str, Seeds]
"""Values of one metric per epoch, by method and seed."""

LEVEL, CONFIDENCE = intervals.LEVEL, intervals.CONFIDENCE
POWER = 0.8
"""Power at which :attr:`Difference.detectable` is computed."""
FEWEST = 3
"""Minimum number of paired seeds for a verdict."""
_ROUNDING = 1e-6
"""Relative rounding error of a metric: about eight float32 ulps."""


@dataclass(frozen=True)
class Summary:
    """Mean (nan without seeds) and standard deviation (None below two seeds)."""

    mean: float
    sd: float | None
    n: int


@dataclass(frozen=True)
class Difference:
    """Paired difference from the baseline, positive if the method is better."""

    mean: float
    sd: float
    """0 if the differences vary by less than the metric can resolve."""
    n: int
    low: float
    """Lower end of the confidence interval, nan without spread.

    Its level is 1 - ``LEVEL``, corrected over the methods like p: it excludes zero if
    and only if p after Holm is below ``LEVEL``.
    """
    high: float
    p: float
    """p-value of the paired test, two-sided."""
    p_holm: float
    """Corrected over the methods of the comparison."""
    detectable: float
    """Smallest true difference that n seeds find with 80% power, at ``LEVEL`` over the
    number of methods (Holm's level for the smallest p) and with the observed spread;
    nan without spread, and if the test is adjusted for skew."""
    skew: float = 0.0
    """Skewness if the differences have a long tail opposite in sign to their mean, else
    0."""
    resolution: float = 0.0
    """If sd is 0, the spread that the metric cannot resolve."""
    smallest_effect: float = 0.0
    """Smallest difference that matters, in the metric's unit."""
    freedom: float = 0.0
    """Welch's degrees of freedom if the seeds are not paired; then n is the smaller
    number of seeds, and sd the standard error times sqrt(n)."""
    sequential: bool = False
    """Whether p and interval are valid at every look: see ``sequential.py``."""

    @property
    def verdict(self) -> Verdict:
        """The verdict, from the corrected p-value and the interval."""
        if self.n < FEWEST:
            return "undecided"
        low, high = self.bounds
        is_small = -self.smallest_effect <= low <= high <= self.smallest_effect
        # The sign test finds differences in the last digit, which matter to nobody.
        if self.p_holm < LEVEL and (self.sd or not is_small):
            return "helps" if self.mean > 0 else "hurts"
        return "no difference" if is_small else "undecided"

    @property
    def bounds(self) -> tuple[float, float]:
        """The interval; near ties have one as if they varied by the resolution."""
        if self.sd:
            return self.low, self.high
        half = half_width(self.resolution, self.n, self.level)
        return self.mean - half, self.mean + half

    @property
    def allows_for_skew(self) -> bool:
        """Whether p and interval are adjusted for skew."""
        return self.skew != 0 and self.n >= ALLOWED_FROM

    @property
    def p_if_skewed(self) -> float:
        """Corrected p of the test adjusted for skew, also with few seeds."""
        if not self.skew or self.allows_for_skew:
            return self.p_holm
        p = skewed_p(self.mean, self.sd, self.n, self.skew)
        p = anytime_p(p, self.n) if self.sequential else p
        return max(self.p_holm, min(1.0, p * self._factor))

    @property
    def is_doubtful(self) -> bool:
        """Whether a test adjusted for skew would overturn the verdict."""
        return self.p_holm < LEVEL <= self.p_if_skewed

    @property
    def level(self) -> float:
        """Level of a t-interval with n pairs: corrected over methods and looks."""
        corrected = LEVEL / self._factor  # the same factor as for p
        if not self.sequential:
            return corrected
        alike = int(self.freedom) + 1 if self.freedom else self.n
        return nominal_level(corrected, alike)

    @property
    def _factor(self) -> float:
        """Holm's factor for p."""
        return self.p_holm / self.p if self.p > 0 else 1.0


@dataclass(frozen=True)
class SpeedUp:
    """Epochs to reach the baseline's final value of the same seed."""

    reached: int
    """Seeds in which the method reached it."""
    n: int
    epochs: float | None
    """Median over the seeds that reached it."""
    factor: float | None
    """Median of the baseline's epochs to its own final value over the method's."""


@dataclass(frozen=True)
class MethodResult:
    """Results of one method."""

    method: str
    last: Summary
    """At the last epoch, which decides."""
    best: Summary
    """At each seed's best epoch on the test data: optimistic, never decides."""
    difference: Difference | None
    """None for the baseline, and with fewer than two pairs."""
    verdict: Verdict
    speed_up: SpeedUp | None
    """None for the baseline, and without pairs."""
    idle: str = ""
    """Why the method did not act, if it did not."""


def compare(
    curves: Curves,
    *,
    higher_is_better: bool,
    baseline: str = "plain",
    smallest_effect: float | None = None,
    idle: Mapping[str, str] | None = None,
    sequential: bool = False,
) -> list[MethodResult]:
    """Compare every method with the baseline, in the order of the curves.

    A method without a seed in common with the baseline is compared by Welch's unpaired
    test.

    Args:
        curves: values by method and seed.
        higher_is_better: the direction of the metric.
        baseline: the method to compare with.
        smallest_effect: smallest difference that matters; by default 1% of the
            baseline's value, its median over seeds, which one exploded seed cannot
            change.
        idle: methods that did not act, and why; they are not judged.
        sequential: whether p-values and intervals must be valid at every look, for
            seeds that are added until the verdicts are settled.

    >>> plain, ema = {0: [1.0], 1: [2.0], 2: [3.5]}, {0: [1.5], 1: [2.7], 2: [3.0]}
    >>> results = compare({"plain": plain, "ema": ema}, higher_is_better=True)
    >>> [result.verdict for result in results]
    ['baseline', 'undecided']
    """
    if baseline not in curves:
        raise ValueError(f"baseline must be in {[*curves]}, got {baseline!r}.")
    sign = 1 if higher_is_better else -1
    finished = finished_curves(curves, sign)
    base = finished[baseline]
    others = {method: own for method, own in finished.items() if method != baseline}
    idle = idle or {}
    paired = {
        m: own for m, own in others.items() if m not in idle and _enough(own, base)
    }
    found = {
        m: _difference(own, base, len(paired), sequential) for m, own in paired.items()
    }
    corrected = holm([difference.p for difference in found.values()])
    if smallest_effect is None and base:
        smallest_effect = OF_BASELINE * median(abs(c[-1]) for c in base.values())
    for method, p_holm in zip(found, corrected, strict=True):
        found[method] = replace(
            _with_interval(replace(found[method], p_holm=p_holm)),
            smallest_effect=smallest_effect or 0.0,
        )
    return [
        MethodResult(
            method=method,
            last=_summary([sign * c[-1] for c in own.values()]),
            best=_summary([sign * max(filter(is_usable, c)) for c in own.values()]),
            difference=found.get(method),
            verdict="baseline"
            if method == baseline
            else "did not act"
            if method in idle
            else verdict_of(found.get(method)),
            speed_up=_speed_up(own, base) if method in others else None,
            idle="" if method == baseline else idle.get(method, ""),
        )
        for method, own in finished.items()
    ]


def head_to_head(
    curves: Curves,
    first: str,
    second: str,
    *,
    higher_is_better: bool,
    smallest_effect: float | None = None,
    sequential: bool = False,
) -> Difference | None:
    """Compare two methods, positive if the first is better; p is not corrected.

    None with fewer than two pairs, or if one of the methods is missing.
    """
    two = {second: curves.get(second, {}), first: curves.get(first, {})}
    results = compare(
        two,
        higher_is_better=higher_is_better,
        baseline=second,
        smallest_effect=smallest_effect,
        sequential=sequential,
    )
    return results[-1].difference


def leaders(
    curves: Curves,
    gains: Mapping[str, float],
    *,
    higher_is_better: bool,
    sequential: bool = False,
) -> list[str]:
    """Return the method with the largest gain and those it cannot be told from.

    It is tested against every other one, Holm-corrected over these tests, so a single
    leader is better than all others at ``LEVEL``.

    Args:
        curves: values by method and seed.
        gains: mean difference from the baseline, by method.
        higher_is_better: the direction of the metric.
        sequential: whether the tests must be valid at every look.
    """
    best, *others = sorted(gains, key=gains.__getitem__, reverse=True) or [""]
    pairs = {
        other: head_to_head(
            curves,
            best,
            other,
            higher_is_better=higher_is_better,
            sequential=sequential,
        )
        for other in others
    }
    corrected = holm([1.0 if d is None else d.p for d in pairs.values()])
    ties = [
        other
        for (other, d), p in zip(pairs.items(), corrected, strict=True)
        if d is None or d.n < FEWEST or p >= LEVEL or d.mean <= 0
    ]
    return [best, *ties] if best else []


def paired_differences(
    curves: Curves, method: str, baseline: str, *, higher_is_better: bool
) -> dict[int, float]:
    """Return the difference from the baseline at the last epoch, by seed.

    Excluded seeds are omitted; positive means that the method is better.
    """
    finished = finished_curves(curves, 1 if higher_is_better else -1)
    return _differences(finished[method], finished[baseline])


def holm(p_values: Sequence[float]) -> list[float]:
    """Apply Holm's correction, which bounds the family-wise error rate.

    The smallest of m is multiplied by m, the next by m - 1 and so on; corrected values
    keep the order.
    """
    corrected, largest = [0.0] * len(p_values), 0.0
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected


def verdict_of(difference: Difference | None) -> Verdict:
    """Return the verdict on a difference; undecided if there is none."""
    return "undecided" if difference is None else difference.verdict


def finished_curves(curves: Curves, sign: int) -> dict[str, dict[int, list[float]]]:
    """Keep the finished curves, with the sign flipped if lower is better."""
    longest = {m: max(map(len, own.values()), default=0) for m, own in curves.items()}
    return {
        method: {
            seed: [sign * float(value) for value in curve]
            for seed, curve in own.items()
            if 0 < len(curve) == longest[method] and is_usable(curve[-1])
        }
        for method, own in curves.items()
    }


def _differences(own: Seeds, base: Seeds) -> dict[int, float]:
    return {seed: own[seed][-1] - base[seed][-1] for seed in own if seed in base}


def _enough(own: Seeds, base: Seeds) -> bool:
    """Whether there are two pairs or, without any pair, two seeds of each method."""
    pairs = own.keys() & base.keys()
    return len(pairs) > 1 or (not pairs and min(len(own), len(base)) > 1)


def _difference(
    own: Seeds, base: Seeds, comparisons: int, sequential: bool
) -> Difference:
    """Test the paired seeds; p_holm is still p, and there is no interval yet.

    Only paired values matter: an unpaired seed that diverges has no influence.
    """
    if not own.keys() & base.keys():
        return _unpaired_difference(own, base, comparisons, sequential)
    differences = list(_differences(own, base).values())
    n, mean, sd = len(differences), fmean(differences), stdev(differences)
    pairs = [(own[seed][-1], base[seed][-1]) for seed in own if seed in base]
    roundings = [_ROUNDING * max(map(abs, pair)) for pair in pairs]
    step = _resolution([value for pair in pairs for value in pair])
    # Slightly less than one step, because both are rounded.
    unresolved = max(*roundings, 0.999 * step)
    if sd <= unresolved:
        p = _sign_test(differences, roundings, sequential=sequential)
        found = Difference(mean, 0.0, n, nan, nan, p, p, nan, sequential=sequential)
        return replace(found, resolution=unresolved)
    p = 2 * t_sf(abs(mean) / sd * sqrt(n), n - 1)
    level = LEVEL / comparisons
    level = nominal_level(level, n) if sequential else level
    detectable = sd / sqrt(n) * _noncentrality(n - 1, level)
    skew = skew_against(differences, mean, sd)
    found = Difference(
        mean, sd, n, nan, nan, p, p, detectable, skew, sequential=sequential
    )
    if found.allows_for_skew:
        p = max(p, skewed_p(mean, sd, n, skew))
        found = replace(found, detectable=nan)
    p = anytime_p(p, n) if sequential else p
    return replace(found, p=p, p_holm=p)


def _unpaired_difference(
    own: Seeds, base: Seeds, comparisons: int, sequential: bool
) -> Difference:
    """Apply Welch's test; a spread below the metric's resolution counts as that.

    At every look it is treated like a paired test with as many degrees of freedom.
    """
    groups = [[curve[-1] for curve in seeds.values()] for seeds in (own, base)]
    every = [value for group in groups for value in group]
    least = max(_ROUNDING * median(map(abs, every)), 0.999 * _resolution(every))
    errors = [max(stdev(group), least) ** 2 / len(group) for group in groups]
    n, error = min(map(len, groups)), sqrt(sum(errors))
    mean = fmean(groups[0]) - fmean(groups[1])
    if not error:  # nothing but zeros
        found = Difference(mean, 0.0, n, nan, nan, 1.0, 1.0, nan, freedom=n)
        return replace(found, sequential=sequential)
    shares = zip(errors, groups, strict=True)
    weights = [(one / error**2) ** 2 / (len(group) - 1) for one, group in shares]
    freedom = 1 / sum(weights)
    p, level = 2 * t_sf(abs(mean) / error, freedom), LEVEL / comparisons
    if sequential:
        alike = int(freedom) + 1
        p, level = anytime_p(p, alike), nominal_level(level, alike)
    detectable = error * _noncentrality(freedom, level)
    sd = error * sqrt(n)
    found = Difference(mean, sd, n, nan, nan, p, p, detectable, freedom=freedom)
    return replace(found, sequential=sequential)


def _with_interval(difference: Difference) -> Difference:
    """Add the interval, which excludes zero if and only if p after Holm decides."""
    d = difference
    if not d.sd:
        return d
    half = d.sd / sqrt(d.n) * t_isf(d.level / 2, d.freedom or d.n - 1)
    low, high = d.mean - half, d.mean + half
    if d.allows_for_skew:  # p is the larger of two: take the union
        ends = skewed_interval(d.mean, d.sd, d.n, d.skew, d.level)
        low, high = min(low, ends[0]), max(high, ends[1])
    return replace(d, low=low, high=high)


def _sign_test(
    differences: Sequence[float],
    roundings: Sequence[float],
    *,
    sequential: bool = False,
) -> float:
    """Return the exact two-sided p of a sign test, ignoring ties.

    Args:
        differences: one per seed.
        roundings: the size up to which each difference is a tie.
        sequential: whether p must be valid at every look.

    >>> _sign_test([0.3, 0.3, 0.3], [0.0] * 3), _sign_test([0.3, -0.3, 0.0], [0.0] * 3)
    (0.25, 1.0)
    """
    both = list(zip(differences, roundings, strict=True))
    above = sum(value > rounding for value, rounding in both)
    below = sum(value < -rounding for value, rounding in both)
    if sequential:
        return anytime_sign_p(above, below)
    n, most = above + below, max(above, below)
    tail = sum(comb(n, count) for count in range(most, n + 1))
    return min(1.0, tail / 2.0 ** (n - 1))


def _resolution(values: Sequence[float]) -> float:
    """Return the step size of a discrete metric; 0 if there is none.

    An accuracy on 360 samples has steps of 1 / 360. The step is the greatest common
    divisor of the gaps between neighbouring values, up to rounding.

    >>> round(_resolution([0.25, 0.75, 1.0, 2.0]), 6)
    0.25
    """
    # Not the largest: next to a diverged value all others would look equal.
    usual, step = _ROUNDING * median(map(abs, values)), 0.0
    gaps = [
        (high - low, max(usual, _ROUNDING * max(abs(low), abs(high))))
        for low, high in pairwise(sorted(values))
    ]
    for gap, rounding in sorted(gaps):
        # A gap with a rounding error above the step carries no information.
        if gap > rounding and not 0 < step <= rounding:
            step = _common_divisor(gap, step, rounding)
    # Any numbers have divisors of the size of the rounding error.
    return step if step > 50 * usual else 0.0


def _common_divisor(a: float, b: float, rounding: float) -> float:
    """Euclid's algorithm for rounded numbers."""
    while b > rounding:
        rest = a % b
        error = rounding * (a / b + 1)
        a, b = b, 0.0 if rest <= error or b - rest <= error else rest
    return a


@lru_cache
def _noncentrality(df: float, level: float) -> float:
    """Return the true mean, in standard errors, found with ``POWER``."""
    return noncentrality(t_isf(level / 2, df), df, POWER)


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
