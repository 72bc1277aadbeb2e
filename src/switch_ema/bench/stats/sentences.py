"""What a comparison has found, in words."""

from math import floor, isnan, log10

from switch_ema.bench.recipe import Metric
from switch_ema.bench.stats.paired import (
    CONFIDENCE,
    FEWEST,
    LEVEL,
    Difference,
    MethodResult,
)


def sentence(
    result: MethodResult,
    *,
    metric: Metric,
    baseline: str = "plain",
    corrected: bool = True,
) -> str:
    """Say the verdict in words, with the numbers it rests on.

    ``corrected`` tells whether the p-value is one of several after Holm, or stands by
    itself as that of :func:`head_to_head`.
    """
    method, d, last = result.method, result.difference, result.last
    unit = f" {metric.unit}" if metric.unit else ""
    if result.verdict == "baseline":
        if not last.n:
            return f"{method} is the baseline, and has no finite {metric.name}."
        value = f"{last.mean:.4g}{unit} {metric.name}"
        spread = "" if last.sd is None else f"sd {last.sd:.2g}, "
        return f"{method} is the baseline: {value} ({spread}n = {last.n})."
    if d is None:
        return f"Too few seeds finished to compare {method} with {baseline}."
    # As many decimals as show two figures of the interval's half width.
    width = (d.high - d.low) / 2 if d.sd else abs(d.mean) or 1.0
    form = f".{max(0, 1 - floor(log10(width)))}f"
    claim, seen = _evidence(d, metric, unit, baseline, form)
    if result.verdict == "too few seeds":
        return (
            f"Too few seeds to judge {method}: {claim} in n = {d.n}; a verdict needs "
            f"at least {FEWEST}."
        )
    evidence = f"{claim} ({seen}, {_chance(d, corrected)})"
    if result.verdict != "no difference found":
        return f"{method} {result.verdict}: {evidence}{_doubt(d)}."
    text = f"No difference found between {method} and {baseline}: {evidence}"
    if not isnan(d.detectable):
        text += f"; with n = {d.n} a difference of {d.detectable:{form}}{unit} or more"
        text += " would have been found in 4 of 5 comparisons"
    return f"{text}."


def _evidence(
    d: Difference, metric: Metric, unit: str, base: str, form: str
) -> tuple[str, str]:
    """State the difference, and the interval of that number."""
    low, high, word = d.low, d.high, "over" if d.mean >= 0 else "against"
    claim = f"{d.mean:+{form}}{unit} {metric.name} {word} {base}"
    direction = ""
    if not metric.higher_is_better:
        word = "better" if d.mean >= 0 else "worse"
        low, high = (low, high) if d.mean >= 0 else (-high, -low)
        size = f"{abs(d.mean):{form}}{unit}"
        claim = f"{metric.name} {word} by {size} than {base}"
        direction = "lower is better; "
    if d.sd == 0:
        return claim, f"{direction}the same in all n = {d.n} seeds, or nearly so"
    interval = f"{CONFIDENCE} CI {low:{form}} to {high:{form}}"
    return claim, f"{direction}{interval}, n = {d.n}"


def _chance(d: Difference, corrected: bool) -> str:
    p = "p < 0.0001" if d.p_holm < 1e-4 else f"p = {d.p_holm:.2g}"
    if d.sd == 0 or d.allows_for_skew:
        test = "sign test" if d.sd == 0 else "t-test adjusted for skew"
        return f"{p} by {test}{' and Holm' if corrected else ', not corrected'}"
    return f"{p} after Holm" if corrected else f"{p}, not corrected"


def is_doubtful(d: Difference) -> bool:
    """Tell whether a test that allows for skew would not have given the verdict."""
    return d.p_holm < LEVEL <= d.p_if_skewed


def _doubt(d: Difference) -> str:
    if not is_doubtful(d):
        return ""
    return f"; adjusted for the skew of the differences p would be {d.p_if_skewed:.2g}"
