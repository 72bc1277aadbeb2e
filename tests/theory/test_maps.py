"""Where switching helps."""

import numpy as np
import pytest

from switch_ema.theory.maps import switch_map, tune_rate
from switch_ema.theory.periodic import expected_losses
from switch_ema.theory.quadratic import NoisyQuadratic, SwitchSettings
from switch_ema.theory.simulation import constant_rates


def test_map_agrees_with_single_settings():
    found = switch_map(decay=0.9, horizon=12, distance=3.0, steepness=[0.1, 1.5])
    assert found.intervals.tolist() == [1, 2, 3, 4, 6]
    assert np.allclose(found.windows, [0.1, 0.2, 0.3, 0.4, 0.6])
    # Another learning rate and noise: a ratio must not care.
    rate, noise, h = 0.2, 5.0, 0.1
    model = NoisyQuadratic.diagonal([h / rate], [noise])
    spread = np.sqrt(rate**2 * noise / (h * (2 - h)))
    args = constant_rates(rate, 12), [3 * spread]
    plain = expected_losses(model, SwitchSettings(decay=0.9), *args)
    switched = expected_losses(model, SwitchSettings(decay=0.9, every=4), *args)
    ratio = switched.shadow[-1] / plain.shadow[-1]
    assert found.switch_ema[0, 3] / found.ema[0] == pytest.approx(ratio, rel=1e-10)
    ratio = switched.shadow[-1] / plain.live[-1]
    assert found.switch_ema[0, 3] / found.sgd[0] == pytest.approx(ratio, rel=1e-10)


def test_h_1_is_neutral_against_ema():
    found = switch_map(decay=0.9, horizon=240, steepness=[1.0])
    assert np.allclose(found.switch_ema, found.ema[:, None], rtol=1e-9)


def test_tune_rate_takes_the_lowest():
    model, start = NoisyQuadratic.diagonal([1.0]), np.array([1.0])
    # After one step from 1 the loss is ((1 - rate)^2 + rate^2) / 2: lowest at 1/2.
    best = tune_rate(
        model,
        SwitchSettings(decay=0),
        start,
        [0.25, 0.5, 1.0],
        lambda r: constant_rates(r, 1),
    )
    assert best.rate == 0.5
    assert best.live == best.shadow == pytest.approx(0.25)


def test_bad_input():
    model, start = NoisyQuadratic.diagonal([1.0]), np.array([1.0])
    with pytest.raises(ValueError, match="steepness must lie in"):
        switch_map(steepness=[2.0])
    with pytest.raises(ValueError, match="horizon must be a whole number"):
        switch_map(horizon=1)
    with pytest.raises(ValueError, match="at least 1 learning rate"):
        tune_rate(
            model, SwitchSettings(decay=0), start, [], lambda r: constant_rates(r, 1)
        )
