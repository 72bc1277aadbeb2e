"""Formatting of numbers and names, the same in every report."""

import math
import re
from collections.abc import Iterable

from switch_ema.bench.recipe import Metric
from switch_ema.bench.stats.paired import Difference, MethodResult, Summary

NONE = "-"
"""Placeholder for a missing number."""
_MOST_DIGITS = 8
_ERROR = 1e-12
"""Rounding error of a difference of two float64 values of everyday size."""


def fixed(value: float, digits: int, sign: str = "") -> str:
    """Format a number with the given decimals, or more if it would look like zero.

    Huge and tiny ones are in scientific notation.

    >>> fixed(-0.004, 2), fixed(0.5, 2, "+"), fixed(3.21e12, 2), fixed(math.nan, 2)
    ('-0.004', '+0.50', '3.21e+12', '-')
    >>> fixed(0.0, 1), fixed(1e-15, 1), fixed(3e-10, 1)
    ('0.0', '0.0', '3e-10')
    """
    if not math.isfinite(value):
        return NONE
    if abs(value) >= 1e7:
        return f"{value:{sign}.3g}"
    size = abs(value)
    if size < _ERROR:  # zero, up to the rounding error of a difference
        return f"{0.0:{sign}.{digits}f}"
    if round(size, digits) == 0:
        digits = math.ceil(-math.log10(size))
        if digits > _MOST_DIGITS:
            return f"{value:{sign}.0e}"
    return f"{value:{sign}.{digits}f}"


def digits_for(results: Iterable[MethodResult]) -> int:
    """Return the decimals that show two digits of the typical interval's half width.

    One number for the whole table makes its columns comparable at a glance. Without
    intervals, the spread over seeds is used.
    """
    results = list(results)
    halves = [(d.high - d.low) / 2 for r in results if (d := r.difference) is not None]
    spreads = [result.last.sd or 0.0 for result in results]
    for sizes in (halves, spreads):
        known = sorted(size for size in sizes if size > 0 and math.isfinite(size))
        if known:
            usual = known[len(known) // 2]
            return min(_MOST_DIGITS, max(0, 1 - math.floor(math.log10(usual))))
    return 3


def digits_of(metric: Metric, results: Iterable[MethodResult]) -> int:
    """Return the decimals of a metric's table: declared by the metric, or computed."""
    return digits_for(results) if metric.decimals is None else metric.decimals


def digits_within(difference: Difference) -> int:
    """Return the decimals that show two digits of its own interval's half width."""
    d = difference
    size = (d.high - d.low) / 2 if d.sd else abs(d.mean)
    is_known = size > 0 and math.isfinite(size)
    return max(0, 1 - math.floor(math.log10(size))) if is_known else 0


def gain_and_interval(difference: Difference, digits: int) -> str:
    """Format "+mean [low, high]"; without spread, the mean alone."""
    mean = fixed(difference.mean, digits, "+")
    if not difference.sd:
        return mean
    ends = (fixed(end, digits, "+") for end in (difference.low, difference.high))
    return f"{mean} [{', '.join(ends)}]"


def mean_and_spread(summary: Summary, digits: int) -> str:
    """Format "mean ± standard deviation"; the latter needs two seeds.

    >>> mean_and_spread(Summary(91.234, 0.5, 8), 2)
    '91.23 ± 0.50'
    >>> mean_and_spread(Summary(3, None, 1), 0)
    '3'
    """
    mean = fixed(summary.mean, digits)
    return mean if summary.sd is None else f"{mean} ± {fixed(summary.sd, digits)}"


def p_value(p: float) -> str:
    """Format a p-value.

    >>> p_value(0.00001), p_value(0.0312), p_value(1.0)
    ('<0.0001', '0.031', '1')
    """
    return "<0.0001" if p < 1e-4 else f"{p:.2g}"


def seconds(value: float) -> str:
    """Format a duration in seconds.

    >>> seconds(0.1234), seconds(12.34), seconds(1234.5)
    ('0.12', '12.3', '1234')
    """
    return fixed(value, 2 if value < 10 else 1 if value < 100 else 0)


def megabytes(value: float) -> str:
    """Format a size in MB with three digits.

    >>> megabytes(0.01234), megabytes(12.34), megabytes(1234.5), megabytes(math.nan)
    ('0.0123', '12.3', '1234', '-')
    """
    if not math.isfinite(value):
        return NONE
    return f"{value:.3g}" if value < 100 else fixed(value, 0)


def duration(value: float, none: str = "done") -> str:
    """Format a duration roughly; zero has a word for it.

    >>> duration(0), duration(42.4), duration(150), duration(9000)
    ('done', '43 s', '3 min', '2.5 h')
    """
    if value <= 0:
        return none
    if value < 100:
        return f"{math.ceil(value)} s"
    if value < 5400:
        return f"{math.ceil(value / 60)} min"
    return f"{value / 3600:.1f} h"


def significant(value: float, *, up: bool = False) -> str:
    """Format a size with two significant digits; ``up`` never rounds it down.

    >>> significant(37.4), significant(1234), significant(0.5), significant(0.0321)
    ('37', '1234', '0.5', '0.032')
    >>> significant(0.0321, up=True), significant(0.3, up=True)
    ('0.033', '0.3')
    """
    if not value or not math.isfinite(value):
        return fixed(value, 0)
    digits = max(0, 1 - math.floor(math.log10(abs(value))))
    if up and float(f"{value:.{digits}f}") < value * (1 - 1e-9):
        value += 0.5 * 10.0**-digits
    text = fixed(value, digits)
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text


def with_unit(metric: Metric) -> str:
    """Format a metric with its unit, for headings and axes."""
    return f"{metric.name} ({metric.unit})" if metric.unit else metric.name


def difference_unit(metric: Metric) -> str:
    """Return the unit of a difference of two values.

    >>> difference_unit(Metric(name="accuracy", higher_is_better=True, unit="%"))
    'percentage points'
    """
    return "percentage points" if metric.unit == "%" else metric.unit


def size_of(value: float, metric: Metric, *, up: bool = False) -> str:
    """Format the size of a difference with its unit.

    >>> size_of(0.5, Metric(name="accuracy", higher_is_better=True, unit="%"))
    '0.5 points'
    """
    unit = "points" if metric.unit == "%" else metric.unit
    return f"{significant(value, up=up)}{f' {unit}' if unit else ''}"


def shortened(text: str, length: int) -> str:
    """Truncate a long name to fit into a figure."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def typographic(text: str) -> str:
    r"""Use typographic minus signs, dashes and spaces.

    The terminal keeps the hyphen, which every encoding supports.

    >>> typographic("switch-ema: -0.2 (95% CI -0.3 to -0.1, n = 8)")
    'switch-ema: \u22120.2 (95% CI \u22120.3 to \u22120.1, n\xa0=\xa08)'
    >>> typographic("+1.2 [0.3, 2.1]")
    '+1.2 [0.3,\xa02.1]'
    """
    if text == NONE:
        return "\N{EN DASH}"
    text = re.sub(r"(?:(?<=[\s(\[])|^)-(?=\d)", "\N{MINUS SIGN}", text)
    text = re.sub(r"(?<=\[)(\S+,) (?=\S+\])", "\\1\N{NO-BREAK SPACE}", text)
    return re.sub(
        r"\b([np]) ([=<]) (?=\d)", "\\1\N{NO-BREAK SPACE}\\2\N{NO-BREAK SPACE}", text
    )
