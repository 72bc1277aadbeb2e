"""Means, intervals and paired differences over seeds."""

from math import isnan, nan

import numpy as np
import pytest
from scipy import stats

from switch_ema.analysis.boundary.measures import Boundary
from switch_ema.analysis.boundary.summary import (
    MEASURES,
    MethodBoundaries,
    named,
    summarize,
)
from switch_ema.analysis.intervals import interval


def method(name, widths, accuracy=None):
    return MethodBoundaries(
        method=name,
        boundaries=tuple(Boundary(width=width) for width in widths),
        probabilities=np.zeros((len(widths), 4)),
        accuracy=np.array(accuracy or [90.0] * len(widths)),
        calibration_error=np.array([5.0] * len(widths)),
    )


def test_interval_is_students():
    values = [1.0, 2.5, 2.0, 4.0]
    low, high = stats.t.interval(0.97, 3, np.mean(values), stats.sem(values))
    assert interval([*values, nan]) == pytest.approx((np.mean(values), low, high, 4))


def test_few_values_have_no_interval():
    one, none = interval([2.0, nan]), interval([nan])
    assert (one.mean, one.n) == (2.0, 1) and isnan(one.low)
    assert none.n == 0 and isnan(none.mean)


def test_differences_are_paired_by_seed():
    """A seed where one of the two has no value is no pair."""
    plain = method("plain", [1.0, 2.0, 3.0, nan])
    other = method("ema", [1.5, nan, 3.7, 9.0])
    first, second = summarize((plain, other), ["width"])
    assert (first.value.n, first.difference) == (3, None)
    assert second.value.n == 3
    assert second.difference == pytest.approx(interval([0.5, 0.7]))


def test_every_measure_of_every_method_is_there():
    rows = summarize((method("plain", [1.0, 2.0]), method("ema", [1.0, 2.0])))
    assert [(row.measure, row.method) for row in rows] == [
        (measure, name) for measure in MEASURES for name in ("plain", "ema")
    ]


def test_accuracy_is_a_measure_and_unknown_ones_are_refused():
    one = method("plain", [1.0, 2.0], [80.0, 90.0])
    assert one.values("accuracy").tolist() == [80, 90]
    assert one.values("calibration_error").tolist() == [5, 5]
    with pytest.raises(ValueError, match=r"measure must be in .*, got 'beauty'"):
        one.values("beauty")


def test_names_have_units():
    assert named("roughness") == "roughness (rad per data unit)"
