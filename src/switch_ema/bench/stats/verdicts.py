"""The verdicts on a method: one closed set, with its order, words and threshold.

``helps`` and ``hurts``: the interval of the difference excludes zero. ``no
difference``: it includes zero and lies between minus and plus the smallest effect of
interest. ``undecided``: neither, or too few seeds; more seeds may decide. ``did not
act``: the method changed nothing in this run, so it is not judged.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Literal, get_args

from switch_ema.bench.recipe import Metric

Verdict = Literal[
    "helps", "hurts", "no difference", "undecided", "did not act", "baseline"
]
"""What a comparison says about a method; the baseline itself is not judged."""

VERDICTS: Final[tuple[Verdict, ...]] = get_args(Verdict)[:-1]
"""Verdicts on methods, most important to the reader first."""
JUDGED: Final = VERDICTS[:-1]
"""Verdicts on methods that acted."""
DECIDED: Final[frozenset[Verdict]] = frozenset(VERDICTS) - {"undecided"}
"""Verdicts that more seeds are not expected to change."""

POINTS = 0.5
"""Smallest effect of interest for metrics in %, in percentage points."""
OF_BASELINE = 0.01
"""Smallest effect of interest for other metrics, as a share of the baseline's value."""

_BOUNDS = ("floor", "ideal")
"""First words of the names of trivial predictors that nothing is expected to beat."""

_CLAUSES: dict[Verdict, tuple[str, str]] = {
    "helps": ("{names} helps", "{names} help"),
    "hurts": ("{names} hurts", "{names} hurt"),
    "no difference": ("no difference larger than {smallest} for {names}",) * 2,
    "undecided": ("{names} is undecided", "{names} are undecided"),
    "did not act": ("did not act: {names}",) * 2,
}


def clause(verdict: Verdict, methods: Sequence[str], names: str, smallest: str) -> str:
    """Return the part of a sentence on the methods with one verdict.

    Args:
        verdict: theirs.
        methods: the methods.
        names: the methods as a list in English.
        smallest: the smallest effect of interest with its unit.

    >>> clause("helps", ["ema", "swa"], "ema and swa", "0.5 points")
    'ema and swa help'
    """
    words = _CLAUSES[verdict][len(methods) > 1]
    return words.format(names=names, smallest=smallest)


def smallest_effect_of(metric: Metric) -> float | None:
    """Return the smallest effect of interest, in the metric's unit.

    The chosen or declared one, else half a point for metrics in %; None stands for
    ``OF_BASELINE`` of the baseline's value, which :func:`switch_ema.bench.stats.paired.
    compare` knows.

    >>> smallest_effect_of(Metric(name="accuracy", higher_is_better=True, unit="%"))
    0.5
    """
    if metric.smallest_effect is not None:
        return metric.smallest_effect
    return POINTS if metric.unit == "%" else None


def unbeaten(
    trivial: Mapping[str, Mapping[str, float]], metric: Metric, value: float
) -> str | None:
    """Name the best trivial predictor that a trained model does not beat.

    To beat it means by more than the smallest effect of interest; None if it does.
    Predictors named as a floor or as ideal are bounds, not rivals.
    """
    sign = 1 if metric.higher_is_better else -1
    rivals = {
        name: values[metric.name]
        for name, values in trivial.items()
        if metric.name in values and not name.lower().startswith(_BOUNDS)
    }
    best = max(rivals, key=lambda name: sign * rivals[name], default=None)
    if best is None:
        return None
    smallest = smallest_effect_of(metric)
    margin = OF_BASELINE * abs(rivals[best]) if smallest is None else smallest
    return best if sign * (value - rivals[best]) <= margin else None
