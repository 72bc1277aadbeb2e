"""Calibration by hand, against torchmetrics and scikit-learn, and on made-up data."""

import math

import pytest
import torch
from scipy.stats import binomtest
from sklearn.metrics import brier_score_loss, log_loss
from torch import Tensor
from torchmetrics.functional.classification import multiclass_calibration_error

from switch_ema.analysis.calibration.measures import (
    TEMPERATURES,
    Predictions,
    brier_score,
    calibration_error,
    fit_temperature,
    measure_calibration,
    negative_log_likelihood,
    reliability,
)


def drawn(n: int, classes: int = 4, factor: float = 1.0) -> Predictions:
    """Labels drawn from the probabilities of logits, which are then scaled."""
    logits = 2 * torch.randn(n, classes).double()
    labels = torch.multinomial(logits.softmax(1), 1).squeeze(1)
    return Predictions.from_logits(factor * logits, labels)


def by_hand() -> Predictions:
    """Four examples of confidence 0.9, 0.8, 0.6, 0.6; right, right, right, wrong."""
    sure = torch.tensor([0.9, 0.8, 0.6, 0.6]).double()
    labels = torch.tensor([0, 0, 0, 1])
    return Predictions.from_probabilities(torch.stack([sure, 1 - sure], 1), labels)


def test_worked_example():
    predictions = by_hand()
    low, high = reliability(predictions, 4)[2:]
    assert (low.count, high.count) == (2, 2)
    assert (low.confidence, low.accuracy) == pytest.approx((0.6, 0.5))
    assert (high.confidence, high.accuracy) == pytest.approx((0.85, 1.0))
    # 2/4 * |0.5 - 0.6| + 2/4 * |1 - 0.85|
    assert calibration_error(reliability(predictions, 4)) == pytest.approx(0.125)
    # Twice (1 - p)^2: 0.01, 0.04, 0.16 and for the wrong one 0.36.
    assert brier_score(predictions) == pytest.approx(2 * (0.57) / 4)
    expected = -(math.log(0.9) + math.log(0.8) + math.log(0.6) + math.log(0.4)) / 4
    assert negative_log_likelihood(predictions) == pytest.approx(expected)


@pytest.mark.parametrize("bins", [1, 10, 15])
def test_error_equals_that_of_torchmetrics(bins):
    predictions = drawn(500)  # calibrated: gaps of either sign, so the bins matter
    expected = multiclass_calibration_error(
        predictions.log_probabilities.exp(), predictions.labels, 4, n_bins=bins
    )
    found = calibration_error(reliability(predictions, bins))
    assert found == pytest.approx(expected.item(), rel=1e-4)  # has float32


def test_scores_equal_those_of_scikit_learn():
    predictions = drawn(300, factor=1.7)
    probabilities = predictions.log_probabilities.exp().numpy()
    labels = predictions.labels.numpy()
    brier = brier_score_loss(
        labels, probabilities, labels=range(4), scale_by_half=False
    )
    assert brier_score(predictions) == pytest.approx(brier)
    likelihood = log_loss(labels, probabilities, labels=range(4))
    assert negative_log_likelihood(predictions) == pytest.approx(likelihood)


@pytest.mark.parametrize("adaptive", [False, True])
def test_calibrated_predictions_have_no_error_beyond_noise(adaptive):
    predictions = drawn(20_000)
    bins = reliability(predictions, 10, adaptive=adaptive)
    # E|gap| of a bin is sqrt(2/pi) of its standard deviation.
    noise = sum(
        math.sqrt(2 / math.pi * b.count * b.confidence * (1 - b.confidence))
        for b in bins
        if b.count
    )
    assert calibration_error(bins) < 2 * noise / 20_000 < 0.02
    overconfident = predictions.tempered(0.5)
    bins = reliability(overconfident, 10, adaptive=adaptive)
    assert calibration_error(bins) > 0.05


def test_intervals_are_those_of_wilson():
    for b in reliability(drawn(200, factor=2.0), 8):
        if b.count:
            exact = binomtest(round(b.accuracy * b.count), b.count).proportion_ci(
                0.95, "wilson"
            )
            expected = pytest.approx((exact.low, exact.high), abs=1e-12)
            assert (b.accuracy_low, b.accuracy_high) == expected
        else:
            assert math.isnan(b.accuracy) and math.isnan(b.confidence)
            assert (b.accuracy_low, b.accuracy_high) == (0, 1)


def test_adaptive_bins_hold_equal_counts():
    bins = reliability(drawn(1000), 8, adaptive=True)
    assert [b.count for b in bins] == [125] * 8
    assert (bins[0].low, bins[-1].high) == (0, 1)


def test_adaptive_bins_keep_equal_confidences_together():
    bins = reliability(by_hand(), 4, adaptive=True)
    assert [b.count for b in bins] == [0, 2, 1, 1]
    same = Predictions.from_logits(torch.eye(3), torch.arange(3))
    assert [b.count for b in reliability(same, 5, adaptive=True)] == [0, 3]


def test_full_confidence_is_in_the_last_bin():
    certain = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    predictions = Predictions.from_probabilities(certain, torch.tensor([0, 0]))
    for adaptive in (False, True):
        last = reliability(predictions, 5, adaptive=adaptive)[-1]
        assert (last.count, last.confidence, last.accuracy) == (2, 1, 0.5)
    assert negative_log_likelihood(predictions) == math.inf
    assert math.isfinite(fit_temperature(predictions))


@pytest.mark.parametrize("factor", [0.4, 1.0, 3.0])
def test_temperature_is_recovered(factor):
    assert fit_temperature(drawn(20_000, factor=factor)) == pytest.approx(
        factor, rel=0.03
    )


def test_temperature_is_the_best_one():
    predictions = drawn(300, factor=3.0)
    best = fit_temperature(predictions)
    at_best = negative_log_likelihood(predictions.tempered(best))
    for factor in (0.99, 1.01):
        other = negative_log_likelihood(predictions.tempered(factor * best))
        assert other > at_best


def test_temperature_stays_within_limits():
    logits = torch.tensor([[0.1, 0.0], [0.0, 0.1]])
    right, wrong = torch.tensor([0, 1]), torch.tensor([1, 0])
    low, high = TEMPERATURES
    assert fit_temperature(Predictions.from_logits(logits, right)) == low
    assert fit_temperature(Predictions.from_logits(logits, wrong)) == high


def test_logits_and_probabilities_say_the_same():
    logits, labels = torch.randn(50, 3), torch.randint(3, (50,))
    one = Predictions.from_logits(logits, labels)
    two = Predictions.from_probabilities(logits.softmax(1), labels)
    torch.testing.assert_close(
        one.log_probabilities, two.log_probabilities, rtol=0, atol=1e-5
    )
    # Logits between 0 and 1 are not taken for probabilities.
    small = Predictions.from_logits(torch.tensor([[0.9, 0.1]]), torch.tensor([0]))
    assert small.confidence.item() == pytest.approx(1 / (1 + math.exp(-0.8)))


def test_all_measures_at_once():
    predictions, held_out = drawn(5000, factor=3.0), drawn(5000, factor=3.0)
    state = torch.get_rng_state()
    with torch.no_grad():
        found = measure_calibration(predictions, held_out)
    assert torch.equal(torch.get_rng_state(), state)
    assert found.temperature == fit_temperature(held_out)
    assert found.confidence > found.accuracy
    assert found.ece > 0.08 > 0.03 > found.tempered_ece
    assert found.adaptive_ece == pytest.approx(found.ece, rel=0.3)
    assert found.nll > found.tempered_nll
    assert found.brier == brier_score(predictions)


@pytest.mark.parametrize(
    ("logits", "labels", "message"),
    [
        (torch.zeros(3), torch.zeros(3).long(), "predictions must have"),
        (torch.zeros(3, 1), torch.zeros(3).long(), "2 classes"),
        (torch.zeros(0, 2), torch.zeros(0).long(), "1 example"),
        (torch.zeros(3, 2), torch.zeros(2).long(), r"labels must have the shape \(3,"),
        (torch.zeros(3, 2), torch.zeros(3), "whole numbers"),
        (torch.zeros(2, 2), torch.tensor([0, 2]), r"labels must be in \[0, 2\)"),
        (torch.full((1, 2), math.nan), torch.tensor([0]), "logits must be finite"),
    ],
)
def test_bad_input(logits: Tensor, labels: Tensor, message: str):
    with pytest.raises(ValueError, match=message):
        Predictions.from_logits(logits, labels)


def test_other_bad_input():
    with pytest.raises(ValueError, match="probabilities must be"):
        Predictions.from_probabilities(torch.ones(2, 2), torch.tensor([0, 0]))
    with pytest.raises(ValueError, match="bins must be"):
        reliability(by_hand(), 0)
    with pytest.raises(ValueError, match="temperature must be"):
        by_hand().tempered(0)
