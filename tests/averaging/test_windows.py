"""Several windows of one run, and a paired choice among them."""

import io

import pytest
import torch
from torch import nn

from switch_ema import EMA, StateMismatch, Windows, constant
from tests.averaging.helpers import (
    assert_same,
    batches,
    move,
    network,
    scalar_model,
    sgd,
    train_step,
)

DECAYS = ("auto", "constant(0.5)", 0.9)


def far_from(target):
    """Score two examples by the distance of the weight to targets."""
    return lambda model: (model.weight.flatten() - torch.tensor(target)).abs()


def moved(*values):
    """Return a model and windows that have followed its weight."""
    model = scalar_model()
    windows = Windows(model, decays=["constant(0.5)", "constant(0.9)"])
    for value in values:
        move(model, value)
        windows.update()
    return model, windows


def test_windows_are_those_of_separate_averages():
    model = network()
    optimizer = sgd(model)
    windows = Windows(model, optimizer, decays=DECAYS)
    alone = {str(decay): EMA(model, optimizer, decay=decay) for decay in DECAYS}
    for batch in batches(5):
        train_step(model, optimizer, batch)
    windows.end_epoch()
    assert list(windows) == [*alone] and len(windows) == 3
    for name, average in alone.items():
        found = windows[name].averaged_state_dict()
        assert_same(found, average.averaged_state_dict())
    assert windows["0.9"].epochs == 1


@pytest.mark.parametrize(
    ("target", "chosen"),
    [
        # After 8.0 the live weight is 8, the short average 4 and the long one 0.8.
        ([8.0, 8.0], "live"),
        ([4.0, 4.0], "constant(0.5)"),
        ([0.8, 0.8], "constant(0.9)"),
        # Better by 1.2 on average, with a standard error of 2: the default stays.
        ([0.8, 4.0], "constant(0.5)"),
    ],
)
def test_a_choice_is_paired_and_needs_more_than_its_error(target, chosen):
    model, windows = moved(8.0)
    choice = windows.choose(far_from(target), higher_is_better=False)
    assert choice.name == windows.chosen == chosen
    assert choice.n == 2 and f"-> {chosen}:" in str(choice)
    with windows.averaged():
        shown = model.weight.item()
    assert shown == pytest.approx(
        {"live": 8.0, "constant(0.5)": 4.0, "constant(0.9)": 0.8}[chosen]
    )
    assert windows.averaged_state_dict()["weight"].item() == shown
    assert model.weight.item() == 8.0


def test_gains_and_errors_are_those_of_the_pairs():
    _, windows = moved(8.0)
    choice = windows.choose(far_from([8.0, 6.0]), higher_is_better=False)
    assert choice.scores == pytest.approx(
        {"constant(0.5)": 3.0, "constant(0.9)": 6.2, "live": 1.0}
    )
    assert choice.gains == pytest.approx(
        {"constant(0.5)": 0.0, "constant(0.9)": -3.2, "live": 2.0}
    )
    assert choice.errors["live"] == pytest.approx(2.0)  # gains of 4 and 0
    assert choice.name == "constant(0.5)"


def test_higher_may_be_better():
    _, windows = moved(8.0)
    measure = far_from([0.0, 0.0])
    assert windows.choose(measure, higher_is_better=True).name == "live"
    assert windows.choose(measure, higher_is_better=False).name == "constant(0.9)"


def test_weights_that_are_not_finite_are_not_chosen():
    model, windows = moved(8.0, float("nan"))
    move(model, 1.0)
    choice = windows.choose(far_from([0.0, 0.0]), higher_is_better=False)
    assert choice.name == "live"


def test_a_restart_begins_all_windows_again():
    _, windows = moved(8.0)
    windows.restart()
    assert {windows[n].averaged_state_dict()["weight"].item() for n in windows} == {8.0}


def test_resuming_is_exact_and_keeps_the_choice():
    def run(reload):
        model = network()
        optimizer = sgd(model)
        windows = Windows(model, optimizer, decays=DECAYS)
        for step, batch in enumerate(batches(6)):
            train_step(model, optimizer, batch)
            if step == 3:
                model.eval()
                windows.choose(lambda m: m.scale.repeat(2), higher_is_better=True)
                model.train()
            if step == 3 and reload:
                file = io.BytesIO()
                torch.save(windows.state_dict(), file)
                file.seek(0)
                windows.detach()
                windows = Windows(model, optimizer, decays=DECAYS)
                windows.load_state_dict(torch.load(file, weights_only=True))
        return windows

    whole, resumed = run(reload=False), run(reload=True)
    assert whole.chosen == resumed.chosen
    for name in whole:
        found = resumed[name].averaged_state_dict()
        assert_same(found, whole[name].averaged_state_dict())


def test_a_state_that_does_not_fit_changes_nothing():
    model = network()
    windows = Windows(model, decays=["auto", "constant(0.5)"])
    before = windows.state_dict()
    last = before["windows"]["constant(0.5)"] | {"average_start": 99}
    later = {"auto": before["windows"]["auto"] | {"steps": 3}, "constant(0.5)": last}
    other = Windows(nn.Linear(2, 2), decays=["auto", "constant(0.5)"]).state_dict()
    only_last = {**before["windows"], "constant(0.5)": other["windows"]["auto"]}
    for state, message in (
        ({}, "not the state_dict"),
        (other, "another model"),
        ({**before, "windows": only_last}, "another model"),
        ({**before, "windows": {"auto": {}}}, "has the windows auto, expected auto, c"),
        ({**before, "chosen": "0.3"}, "chosen window is '0.3'"),
        ({**before, "windows": later}, "average_start is 99"),
    ):
        with pytest.raises(StateMismatch, match=message):
            windows.load_state_dict(state)
    after = windows.state_dict()
    assert after["chosen"] == "auto"
    assert [windows[name].steps for name in windows] == [0, 0]
    for name in windows:
        own, was = (state["windows"][name]["shadow"] for state in (after, before))
        assert_same(own, was)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decays": "auto"}, "decays must be a list"),
        ({"decays": []}, "one or more"),
        ({"decays": ["auto", "auto"]}, "differ"),
        ({"decays": [constant(0.9)]}, "numbers or strings"),
        ({"decays": ["soon"]}, "decay must be in"),
        ({"decay": 0.9}, "not decay"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Windows(nn.Linear(1, 1), **options)


@pytest.mark.parametrize("scores", [0.5, [0.5], [[0.5, 0.5]]])
def test_scores_must_be_one_per_example(scores):
    windows = Windows(nn.Linear(1, 1))
    with pytest.raises(ValueError, match="one score per example"):
        windows.choose(lambda _: scores, higher_is_better=True)


def test_scores_of_other_lengths_cannot_be_paired():
    windows = Windows(nn.Linear(1, 1))
    lengths = iter((3, 4))
    with pytest.raises(ValueError, match="as many for all windows"):
        windows.choose(lambda _: torch.ones(next(lengths)), higher_is_better=True)
