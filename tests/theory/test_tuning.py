"""Learning rate and decay tuned together."""

import numpy as np
import pytest

from switch_ema.theory.gallery import example_model
from switch_ema.theory.periodic import expected_losses
from switch_ema.theory.quadratic import NoisyQuadratic, SwitchSettings
from switch_ema.theory.simulation import constant_rates, cosine_rates
from switch_ema.theory.tuning import final_losses, tune


@pytest.mark.parametrize("every", [None, 7])
@pytest.mark.parametrize("rates", [constant_rates, cosine_rates])
def test_all_settings_at_once_equal_single_ones(every, rates):
    turn = np.array([[0.6, -0.8], [0.8, 0.6]])
    model = NoisyQuadratic(turn @ np.diag([1.0, 0.2]) @ turn.T, np.diag([1.0, 3.0]))
    start, shape = np.array([2.0, -1.0]), rates(1.0, 30)
    peaks, decays = [0.1, 0.9, 1.5], [0.0, 0.8, 0.95]
    found = final_losses(model, start, shape, peaks, decays, every)
    for i, peak in enumerate(peaks):
        for j, decay in enumerate(decays):
            settings = SwitchSettings(decay=decay, every=every)
            one = expected_losses(model, settings, peak * shape, start).shadow[-1]
            assert found[i, j] == pytest.approx(one, rel=1e-10)


@pytest.mark.parametrize("every", [None, 20])
def test_tuning_finds_what_a_fine_grid_finds(every):
    model, shape = example_model(), cosine_rates(1.0, 60)
    start = np.full(model.size, 3.0)
    best = tune(model, start, shape, every)
    rates, decays = np.geomspace(0.02, 1.98, 150), 1 - np.geomspace(0.1, 0.002, 60)
    grid = final_losses(model, start, shape, rates, decays, every)
    assert grid.min() * 0.99 < best.loss <= grid.min() * 1.0001
    settings = SwitchSettings(decay=best.decay, every=every)
    alone = expected_losses(model, settings, best.rate * shape, start).shadow[-1]
    assert best.loss == pytest.approx(alone, rel=1e-10)


def test_the_interval_must_be_a_count():
    with pytest.raises(ValueError, match="every must be a whole number"):
        tune(example_model(), np.ones(10), np.ones(5), 0)
