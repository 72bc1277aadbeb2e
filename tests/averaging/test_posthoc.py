"""Post-hoc EMA: the averages, the snapshots, and what is synthesized from them."""

import math
import sys
from functools import partial

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from switch_ema import StateMismatch, Steps
from switch_ema.averaging import profiles, soup
from switch_ema.averaging.posthoc import PostHocEMA
from switch_ema.averaging.profiles import (
    PowerAverage,
    exponential_profile,
    gamma_to_sigma_rel,
    power_profile,
    sigma_rel_to_gamma,
    solve,
    uniform_profile,
)
from switch_ema.averaging.synthesis import fit_profile, synthesize

from .helpers import (
    assert_same,
    batches,
    copy_of,
    move,
    network,
    scalar_model,
    sgd,
    shadow,
    train_step,
)

Posthoc = partial(PostHocEMA, every=Steps(5))


def train(folder, steps=60, make=Posthoc, dtype=torch.float32, **options):
    """Train for real; return the averager and the live weights after each step."""
    model = network(dtype=dtype)
    optimizer = sgd(model)
    averager = make(model, optimizer, folder=folder, **options)
    lives = []
    for batch in batches(steps, dtype=dtype):
        train_step(model, optimizer, batch)
        lives.append(copy_of(model.state_dict()))
    return averager, lives


def weighted(lives, profile):
    """The average by its definition: a weighted sum of all live weights."""
    t = len(lives)
    weights = profile(torch.arange(1, t + 1, dtype=torch.float64), t)
    weights = (weights / weights.sum()).tolist()
    return {
        name: sum(w * live[name].double() for w, live in zip(weights, lives, strict=True))
        for name in lives[0]
        if lives[0][name].is_floating_point()
    }


def distance(state, expected):
    """Relative L2 distance over all averaged tensors."""
    gaps = [(state[name].double() - value).norm() for name, value in expected.items()]
    norms = [value.norm() for value in expected.values()]
    return (torch.stack(gaps).norm() / torch.stack(norms).norm()).item()


def steps_in(folder):
    return sorted({int(path.name[4:13]) for path in folder.glob("*.safetensors")})


# The averages.


@pytest.mark.parametrize(
    ("gamma", "lives", "averages"),
    [
        # gamma 0: beta = 0, 1/2, 2/3, the running mean
        # live:     6 -> 2 -> 1
        # average:  6 -> 4 -> 3
        (0, [6.0, 2.0, 1.0], [6.0, 4.0, 3.0]),
        # gamma 1: beta = 0, 1/4, 4/9
        # live:     8 -> 4 -> 14
        # average:  8 -> 8/4 + 4*3/4 = 5 -> 5*4/9 + 14*5/9 = 10
        (1, [8.0, 4.0, 14.0], [8.0, 5.0, 10.0]),
    ],
)
def test_first_three_steps_by_hand(tmp_path, gamma, lives, averages):
    model = scalar_model(100.0)  # the initial weight leaves no trace
    averager = Posthoc(model, folder=tmp_path, sigma_rel=[gamma_to_sigma_rel(gamma)])
    assert averager.current_decay == 0.0
    seen = []
    for step, live in enumerate(lives, start=1):
        move(model, live)
        averager.update()
        seen.append(shadow(averager))
        assert averager.current_decay == pytest.approx((1 - 1 / step) ** (gamma + 1))
    assert seen == pytest.approx(averages, rel=1e-12)


def test_averages_are_weighted_sums_of_all_past_weights(tmp_path):
    averager, lives = train(tmp_path, steps=20, dtype=torch.float64)
    state = averager.state_dict()
    for name, sigma_rel in (("shadow", 0.05), ("shadow_2", 0.10)):
        expected = weighted(lives, power_profile(sigma_rel))
        assert distance(state[name], {n: expected[n] for n in state[name] if n in expected}) < 1e-14
    expected = weighted(lives, power_profile(0.05))
    assert distance(averager.averaged_state_dict(), expected) < 1e-14


@pytest.mark.parametrize(
    ("sigma_rel", "gamma"), [(0.05, 16.97), (0.10, 6.94), (0.20, 1.80)]
)
def test_sigma_rel_and_gamma_are_inverse(sigma_rel, gamma):
    assert sigma_rel_to_gamma(sigma_rel) == pytest.approx(gamma, abs=0.005)
    assert gamma_to_sigma_rel(sigma_rel_to_gamma(sigma_rel)) == pytest.approx(
        sigma_rel, rel=1e-14
    )


def test_the_widest_power_average_is_the_mean():
    assert sigma_rel_to_gamma(profiles.WIDEST) == 0.0
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


def test_flat_storage_gives_the_same_averages(tmp_path):
    plain, _ = train(tmp_path / "plain", steps=8)
    flat, _ = train(tmp_path / "flat", steps=8, flat=True)
    for name in ("shadow", "shadow_2"):
        for key, value in plain.state_dict()[name].items():
            torch.testing.assert_close(flat.state_dict()[name][key], value)


# Synthesis.


@pytest.mark.parametrize("sigma_rel", [0.05, 0.10])
@pytest.mark.parametrize("step", [5, 40, None])
def test_a_stored_average_is_found_again(tmp_path, sigma_rel, step):
    train(tmp_path)
    found = synthesize(tmp_path, power_profile(sigma_rel), step=step)
    name = f"step{step or 60:09d}-sigma{sigma_rel}.safetensors"
    assert distance(found, _averaged(load_file(tmp_path / name))) < 1e-6
    fit = fit_profile(tmp_path, power_profile(sigma_rel), step=step)
    assert fit.residual < 1e-6
    assert fit.coefficients[name] == pytest.approx(1, abs=1e-5)


def _averaged(state):
    return {k: v.double() for k, v in state.items() if v.is_floating_point()}


@pytest.mark.parametrize(
    ("profile", "tolerance"),
    [
        (power_profile(0.075), 1e-4),
        (power_profile(0.15), 1e-3),
        (exponential_profile(0.8), 1e-3),
        (uniform_profile(last=25), 3e-3),
        (lambda steps, t: steps * (t - steps), 1e-2),
    ],
    ids=["power", "wide power", "exponential", "uniform", "own"],
)
@pytest.mark.parametrize("step", [None, 80])
def test_another_profile_is_close_to_its_direct_average(
    tmp_path, profile, tolerance, step
):
    """The weights move by several percent in this training, the error is far less."""
    _, lives = train(tmp_path, steps=120)
    lives = lives[:step]
    expected = weighted(lives, profile)
    assert distance(synthesize(tmp_path, profile, step=step), expected) < tolerance
    assert distance(lives[-1], expected) > 20 * tolerance


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
    matrix, wanted = torch.stack(columns, 1), (steps > 25) / 15
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
    stored = [PowerAverage(t, g) for t in (30, 70, 100) for g in (17.0, 7.0)]
    whole = solve(stored, exponential_profile(0.95), 100, 2**-24)
    monkeypatch.setattr(profiles, "_BLOCK", 6 * 7)  # 7 steps at a time
    parts = solve(stored, exponential_profile(0.95), 100, 2**-24)
    assert parts[0] == pytest.approx(whole[0], rel=1e-6)
    assert parts[1] == pytest.approx(whole[1], rel=1e-6)


def test_weights_that_stand_still_do_so_under_a_bad_fit(tmp_path):
    model = scalar_model(3.0)
    averager = Posthoc(model, folder=tmp_path)
    for _ in range(30):
        averager.update()
    with pytest.warns(UserWarning, match="missed by"):
        average = averager.synthesize(uniform_profile(last=1))
    assert average["weight"].item() == pytest.approx(3.0, rel=1e-12)


def test_a_profile_out_of_reach_warns_by_how_much(tmp_path):
    train(tmp_path, steps=20, every=Steps(20))
    fit = fit_profile(tmp_path, uniform_profile(last=20))
    assert fit.step == 20
    assert sum(fit.coefficients.values()) == pytest.approx(1)
    with pytest.warns(UserWarning, match=f"missed by {fit.residual:.0%}"):
        synthesize(tmp_path, uniform_profile(last=20))


def test_rounding_of_bfloat16_snapshots_is_not_amplified(tmp_path):
    """Without the noise term this profile has coefficients in the thousands."""
    _, lives = train(tmp_path, steps=120, dtype=torch.bfloat16)  # kept in float32
    averager, _ = train(
        tmp_path / "half", steps=120, every=Steps(1), dtype=torch.float32,
        make=partial(PostHocEMA, dtype=torch.bfloat16),
    )
    profile = exponential_profile(0.5)
    fit = fit_profile(tmp_path / "half", profile)
    assert max(map(abs, fit.coefficients.values())) < 50
