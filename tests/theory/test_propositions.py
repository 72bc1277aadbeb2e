"""Which of the paper's claims hold, and where."""

import numpy as np
import pytest

from switch_ema.theory.propositions import (
    bounds,
    measured_sigma,
    proposition_1,
    proposition_2,
    proposition_3,
    reversed_range,
)
from switch_ema.theory.quadratic import NoisyQuadratic

from .test_quadratic import random_model


def holds(verdicts):
    return [verdict.holds for verdict in verdicts]


@pytest.mark.parametrize("decay", [0.3, 0.9, 0.99])
def test_proposition_1_is_reversed_just_inside_the_range(decay):
    low, high = reversed_range(decay)
    for h, expected in (
        (0.01, True),
        (low - 1e-3, True),
        (low + 1e-3, False),
        (high - 1e-3, False),
        (high + 1e-3, True),
    ):
        verdicts = proposition_1(NoisyQuadratic.diagonal([h]), 1.0, decay)
        assert holds(verdicts) == [True, expected, True], h


def test_proposition_1_is_equality_at_h_1():
    verdicts = proposition_1(NoisyQuadratic.diagonal([1.0]), 1.0, 0.9)
    assert verdicts[1].measured == pytest.approx(1, rel=1e-12)
    assert not verdicts[1].holds


def test_proposition_1_without_a_common_basis():
    assert holds(proposition_1(random_model(), 0.02, 0.9)) == [True, True, True]


def test_proposition_2_holds_at_semas_own_weights_only():
    start = [1.0, -2.0, 3.0]
    stated, proved, ema, past, switched = proposition_2(
        random_model(), 0.05, 0.9, 10, start
    )
    assert not stated.holds and stated.measured < 0.99
    assert proved.holds and proved.measured == pytest.approx(1, abs=1e-12)
    assert ema.holds and ema.measured < 0.99
    assert past.holds
    assert not switched.holds


def test_proposition_2_as_stated_is_true_of_the_first_step():
    first = proposition_2(random_model(), 0.05, 0.9, 10, [1.0, -2.0, 3.0], steps=1)
    assert first[0].holds


def test_sgds_bound_holds_up_to_its_largest_rate():
    model = random_model()
    largest = float(np.linalg.eigvalsh(model.curvature)[-1])
    for share in (0.01, 0.3, 1.0):
        found = bounds(model, share / largest, 0.9, 10, np.ones(3))
        assert found.errors[0] < found.sgd
    with pytest.raises(ValueError, match="rate must be at most"):
        bounds(model, 1.01 / largest, 0.9, 10, np.ones(3))


def test_bounds_by_hand():
    # L = 2, C = 1, M = 1 + 3: 0.1 * 2 * 4 / 2
    model = NoisyQuadratic.diagonal([1.0, 2.0], [1.0, 3.0])
    found = bounds(model, 0.1, 0.9, 10, np.ones(2))
    assert found.sgd == pytest.approx(0.4)
    assert found.ema == pytest.approx(0.36)
    assert found.ema_tables == pytest.approx(0.04)
    assert found.sema == pytest.approx(0.4 / found.sigma)
    # SGD, per direction: rate * noise / (2 (2 - h))
    assert found.errors[0] == pytest.approx(0.1 / (2 * 1.9) + 0.3 / (2 * 1.8))


def test_the_tables_letter_breaks_emas_bound_at_small_rates():
    model = NoisyQuadratic.diagonal([1.0])
    small = bounds(model, 0.001, 0.99, 10, [1.0])
    large = bounds(model, 0.6, 0.99, 10, [1.0])
    assert small.errors[1] > small.ema_tables
    assert large.errors[1] < large.ema_tables


def test_the_two_orders_of_proposition_3_contradict_each_other():
    model = NoisyQuadratic.diagonal([0.1, 1.0])
    verdicts = {v.claim: v.holds for v in proposition_3(model, 0.5, 0.9, 10, [3, 3])}
    assert verdicts["text: bound of EMA < bound of SGD"]
    assert not verdicts["proof: bound of SGD < bound of EMA"]


def test_sigma_is_below_1_while_the_start_matters_and_above_later():
    model = NoisyQuadratic.diagonal([0.1])
    assert measured_sigma(model, 0.5, 0.9, 5, [10.0]) < 1
    assert measured_sigma(model, 0.5, 0.9, 60, [6.0]) > 1


def test_sigma_is_nan_where_ema_does_not_fall():
    model = NoisyQuadratic.diagonal([0.1])
    assert np.isnan(measured_sigma(model, 0.5, 0.9, 5, [0.0]))
    assert np.isnan(bounds(model, 0.5, 0.9, 5, [0.0]).sema)
