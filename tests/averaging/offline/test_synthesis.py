"""Averages synthesized from snapshots, against the same averages taken directly."""

import math
import os

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from switch_ema import Steps
from switch_ema.averaging.offline.profiles import (
    exponential_profile,
    power_profile,
    uniform_profile,
)
from switch_ema.averaging.offline.synthesis import fit_profile, synthesize
from tests.averaging.helpers import network, scalar_model
from tests.averaging.methods.posthoc_helpers import Posthoc, distance, train, weighted


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
        (power_profile(0.075), 5e-5),
        (power_profile(0.15), 5e-5),
        (exponential_profile(0.8), 1e-4),
        (uniform_profile(last=25), 2e-4),
        (lambda steps, t: (steps - t / 2).clamp(min=0), 5e-4),
    ],
    ids=["power", "wide power", "exponential", "uniform", "own"],
)
@pytest.mark.parametrize("step", [None, 80])
def test_another_profile_is_close_to_its_direct_average(
    tmp_path, profile, tolerance, step
):
    """To 1 % at least of the distance between the average and the live weights."""
    _, lives = train(tmp_path, steps=120)
    lives = lives[:step]
    expected = weighted(lives, profile)
    assert distance(synthesize(tmp_path, profile, step=step), expected) < tolerance
    assert distance(lives[-1], expected) > 100 * tolerance


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


def test_bfloat16_snapshots_are_known_to_be_coarse(tmp_path):
    train(tmp_path / "single", every=Steps(1))
    train(tmp_path / "half", every=Steps(1), dtype=torch.bfloat16)
    sizes = [
        math.hypot(*fit_profile(folder, exponential_profile(0.5)).coefficients.values())
        for folder in (tmp_path / "single", tmp_path / "half")
    ]
    assert sizes[1] < 0.7 * sizes[0]
    assert synthesize(tmp_path / "half", power_profile(0.1))["scale"].dtype == (
        torch.bfloat16
    )


class Odd(nn.Module):
    """Complex, integer, non-persistent and tied tensors, and one in odd strides."""

    def __init__(self) -> None:
        super().__init__()
        self.spectrum = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
        self.first = nn.Linear(2, 3)
        self.second = nn.Linear(2, 3)
        self.second.weight = self.first.weight
        self.turned = nn.Parameter(torch.zeros(2, 3).t())
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("mean", torch.tensor(0.0))
        self.register_buffer("cache", torch.tensor(0.0), persistent=False)

    def move(self, value: float) -> None:
        for tensor in (*self.parameters(), *self.buffers()):
            tensor.data.fill_(value)


@pytest.mark.parametrize("buffers", ["average", "copy"])
def test_all_kinds_of_tensors_come_back(tmp_path, buffers):
    model = Odd()
    averager = Posthoc(model, folder=tmp_path, buffers=buffers)
    for step in range(1, 26):
        model.move(step)
        averager.update()
    average = synthesize(tmp_path, power_profile(0.075), step=20)
    Odd().load_state_dict(average)  # strict: nothing is missing or unexpected
    assert average["second.weight"] is average["first.weight"]
    assert average["turned"].shape == (3, 2)
    assert average["spectrum"].dtype == torch.complex64
    assert average["count"].item() == 20
    steps = torch.arange(1, 21, dtype=torch.float64)
    wanted = pytest.approx((power_profile(0.075)(steps, 20) @ steps).item(), rel=1e-3)
    assert average["turned"].mean().item() == wanted != 20
    assert average["spectrum"].real.mean().item() == wanted
    assert average["mean"].item() == (20 if buffers == "copy" else wanted)


def test_only_what_is_averaged_is_stored(tmp_path):
    averager, _ = train(tmp_path, steps=5, exclude="norm")
    average = averager.synthesize(power_profile(0.05))
    missing, unexpected = network().load_state_dict(average, strict=False)
    assert not unexpected
    assert missing and all(name.startswith("norm") for name in missing)


def test_bad_folders_and_steps(tmp_path):
    profile = power_profile(0.05)
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(FileNotFoundError, match=f"no snapshots .* in {folder}"):
            synthesize(folder, profile)
    train(tmp_path, steps=10)
    for step in (4, 11):
        with pytest.raises(ValueError, match=rf"step must be in \[5, 10\].*got {step}"):
            synthesize(tmp_path, profile, step=step)
    with pytest.raises(ValueError, match="step must be a whole number"):
        fit_profile(tmp_path, profile, step=7.5)


@pytest.mark.parametrize("foreign", ["safetensors", "text", "renamed"])
def test_foreign_files_are_named(tmp_path, foreign):
    train(tmp_path, steps=5)
    path = tmp_path / "foreign.safetensors"
    if foreign == "safetensors":
        save_file({"weight": torch.zeros(1)}, path)
    elif foreign == "text":
        path.write_text("not a file of tensors at all")
    else:
        next(tmp_path.glob("*sigma0.1*")).rename(path)
    with pytest.raises(ValueError, match=r"foreign.safetensors is not a snapshot"):
        synthesize(tmp_path, power_profile(0.05))


def test_snapshots_of_different_models_are_refused(tmp_path):
    train(tmp_path, steps=10)
    other = Posthoc(nn.Linear(2, 2), folder=tmp_path / "other")
    for _ in range(5):
        other.update()
    for path in (tmp_path / "other").iterdir():
        path.replace(tmp_path / path.name)
    with pytest.raises(
        ValueError, match=r"step000000005.* belongs to another model.*missing"
    ):
        synthesize(tmp_path, power_profile(0.05))


@pytest.mark.parametrize(
    "change",
    [
        {"copied": None},
        {"copied": "[1"},
        {"copied": "5"},
        {"copied": '["absent"]'},
        {"tied": '{"a": "absent"}'},
        {"tied": "[" * 100_000},
    ],
    ids=lambda change: str(change)[:25],
)
def test_a_damaged_snapshot_is_one_sentence(tmp_path, change):
    train(tmp_path, steps=5)
    path = max(tmp_path.glob("*.safetensors"))
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() | change
    kept = {name: text for name, text in metadata.items() if text is not None}
    save_file(load_file(path), path, kept)
    with pytest.raises(ValueError, match=r"safetensors is damaged: it does not say"):
        synthesize(tmp_path, power_profile(0.1))


def test_a_pipe_among_the_snapshots_is_not_waited_for(tmp_path):
    train(tmp_path, steps=5)
    os.mkfifo(tmp_path / "pipe.safetensors")
    with pytest.raises(ValueError, match=r"pipe.safetensors is not a regular file"):
        synthesize(tmp_path, power_profile(0.1))
