"""Profiles: widths, weights, and the fit of one by others."""

import math

import pytest
import torch

from switch_ema.averaging.offline import profiles
from switch_ema.averaging.offline.profiles import (
    PowerAverage,
    exponential_profile,
    power_profile,
    solve,
    uniform_profile,
)
from switch_ema.averaging.schedules.windows import (
    WIDEST,
    gamma_to_sigma_rel,
    sigma_rel_to_gamma,
)


# The first two are the paper's; for gamma 2, sigma_rel is sqrt(3 / (16 * 5)).
@pytest.mark.parametrize(
    ("sigma_rel", "gamma"), [(0.05, 16.97), (0.10, 6.94), (math.sqrt(3 / 80), 2)]
)
def test_sigma_rel_and_gamma_are_inverse(sigma_rel, gamma):
    found = sigma_rel_to_gamma(sigma_rel)
    assert found == pytest.approx(gamma, abs=0.005)
    assert gamma_to_sigma_rel(found) == pytest.approx(sigma_rel, rel=1e-14)


def test_the_widest_power_average_is_the_mean():
    assert sigma_rel_to_gamma(WIDEST) == 0.0
    assert sigma_rel_to_gamma(1e-6) == pytest.approx(1e6, rel=1e-4)


@pytest.mark.parametrize("sigma_rel", [0.02, 0.10, 0.25])
def test_sigma_rel_is_the_standard_deviation_of_the_profile(sigma_rel):
    t = 100_000
    steps = torch.arange(1, t + 1, dtype=torch.float64)
    weights = power_profile(sigma_rel)(steps, t)
    assert weights.sum().item() == pytest.approx(1, rel=1e-12)
    mean = weights @ steps
    deviation = (weights @ (steps - mean) ** 2).sqrt().item()
    assert deviation / t == pytest.approx(sigma_rel, rel=1e-3)


def test_the_fit_is_the_constrained_least_squares_solution():
    """Against a dense solution of the same problem through its multiplier."""
    stored = [
        PowerAverage(step, sigma_rel_to_gamma(s))
        for step in (10, 25, 40)
        for s in (0.05, 0.1)
    ]
    steps = torch.arange(1, 41, dtype=torch.float64)
    columns = [
        torch.where(steps <= step, power_profile(gamma_to_sigma_rel(g))(steps, step), 0)
        for step, g in stored
    ]
    matrix, wanted = torch.stack(columns, 1), (steps > 25).double() / 15
    noise, scale = 0.01, wanted.norm()
    ones = torch.ones(6, 1, dtype=torch.float64)
    top = matrix.T @ matrix / scale**2 + noise**2 * torch.eye(6)
    system = torch.cat([torch.cat([top, ones], 1), torch.cat([ones, ones[:1] * 0]).T])
    right = torch.cat([matrix.T @ wanted / scale**2, torch.ones(1)])
    expected = torch.linalg.solve(system, right)[:6]
    coefficients, residual = solve(stored, uniform_profile(last=15), 40, noise)
    assert coefficients == pytest.approx(expected.tolist(), abs=1e-8)
    missed = (matrix @ expected - wanted).norm() / scale
    assert residual == pytest.approx(missed.item(), rel=1e-8)


def test_blocks_of_steps_do_not_matter(monkeypatch):
    stored = [PowerAverage(t, g) for t in (29, 70, 100) for g in (17.0, 7.0)]
    whole = solve(stored, exponential_profile(0.95), 100, 2**-24)
    monkeypatch.setattr(
        profiles, "_BLOCK", 6 * 7
    )  # 7 steps at a time: 28 and 70 are edges
    parts = solve(stored, exponential_profile(0.95), 100, 2**-24)
    assert parts[0] == pytest.approx(whole[0], rel=1e-6)
    assert parts[1] == pytest.approx(whole[1], rel=1e-6)


def test_rounding_of_coarse_snapshots_is_not_amplified():
    """A narrow profile needs large coefficients; with bfloat16 they would be noise."""
    stored = [
        PowerAverage(step, gamma)
        for step in range(50, 5001, 50)
        for gamma in (17.0, 7.0)
    ]
    profile = exponential_profile(0.97)
    exact, coarse = (solve(stored, profile, 5000, noise) for noise in (2**-24, 2**-8))
    assert math.hypot(*exact[0]) > 100 and exact[1] < 0.1
    assert math.hypot(*coarse[0]) < 50 and coarse[1] < 0.5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: gamma_to_sigma_rel(-0.5), "gamma must be at least 0, got -0.5"),
        (lambda: power_profile(0.5), "sigma_rel must be in"),
        (lambda: exponential_profile(1.0), r"decay must be in \[0, 1\), got 1.0"),
        (lambda: uniform_profile(last=0), "last must be a whole number"),
    ],
)
def test_bad_profiles(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        (lambda steps, t: steps * 0, "sum above 0, got 0.0"),
        (lambda steps, t: steps / 0, "finite weights"),
        (lambda steps, t: steps[1:], r"one weight per step, of shape \[5\], got \[4\]"),
        (lambda steps, t: 1.0, "one weight per step"),
    ],
)
def test_bad_own_profiles(profile, message):
    with pytest.raises(ValueError, match=message):
        solve([PowerAverage(5, 1.0)], profile, 5, 2**-24)
