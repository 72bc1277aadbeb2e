"""A switch that keeps little of the progress warns, once, and says what would not."""

import re
import warnings

import pytest
import torch
from torch import nn

from switch_ema import Steps, SwitchEMA, constant
from switch_ema.averaging.methods.switch_ema import LEAST_KEPT, _largest_decay


def run(sema, epochs, steps):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(epochs):
            for _ in range(steps):
                sema.update()
            sema.end_epoch()
    return [str(one.message) for one in caught]


def test_a_constant_decay_with_short_epochs_warns_once():
    sema = SwitchEMA(nn.Linear(1, 1), decay=constant(0.999))
    (message,) = run(sema, epochs=5, steps=50)
    assert "keeps 2.5% of the progress of the last 50 steps" in message
    proposed = float(re.search(r"at most ([\d.]+)", message)[1])
    assert run(SwitchEMA(nn.Linear(1, 1), decay=constant(proposed)), 5, 50) == []


def test_the_warning_can_be_turned_off():
    sema = SwitchEMA(nn.Linear(1, 1), decay=constant(0.999))
    sema.warns_of_slow_progress = False
    assert run(sema, epochs=5, steps=50) == []


def test_a_number_is_warmed_up_so_that_short_trainings_do_not_warn():
    assert run(SwitchEMA(nn.Linear(1, 1), decay=0.999), epochs=10, steps=50) == []


def test_it_warns_when_the_warm_up_is_over():
    sema = SwitchEMA(nn.Linear(1, 1), decay=0.999, switch_every=Steps(50))
    assert len(run(sema, epochs=2, steps=2500)) == 1


@pytest.mark.parametrize(
    "options",
    [{"live_share": 0.5}, {"switch_every": 20}],
)
def test_what_keeps_enough_does_not_warn(options):
    sema = SwitchEMA(nn.Linear(1, 1), decay=constant(0.999), **options)
    assert run(sema, epochs=20, steps=50) == []


def test_the_share_is_that_of_a_straight_drift():
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.zeros_(model.weight)
    sema = SwitchEMA(model, decay=constant(0.97), update_every=3)
    for _ in range(60):
        with torch.no_grad():
            model.weight += 1.0
        sema.update()
    kept = sema.averaged_state_dict()["weight"].item() / 60
    assert sema._kept_share(0) == pytest.approx(kept)


@pytest.mark.parametrize("steps", [1, 2, 50, 5000, 10**6])
def test_the_proposed_decay_is_the_largest_one(steps):
    def kept(d):
        return 1 - d * (1 - d**steps) / (steps * (1 - d))

    proposed = _largest_decay(steps)
    assert kept(proposed) >= LEAST_KEPT - 1e-9
    assert kept(1 - 0.8 * (1 - proposed)) < LEAST_KEPT


def test_resuming_in_the_middle_of_an_epoch_does_not_warn():
    model = nn.Linear(1, 1)
    sema = SwitchEMA(model, decay=constant(0.99))
    for _ in range(48):
        sema.update()
    resumed = SwitchEMA(model, decay=constant(0.99))
    resumed.load_state_dict(sema.state_dict())
    assert run(resumed, epochs=1, steps=2) == []
