"""A learning rate that jumps up again is noticed where the average is read."""

import warnings

import pytest
import torch
from torch import nn

from switch_ema import EMA, SwitchEMA, constant
from switch_ema.averaging.step.rate_jumps import RateJumps, largest_rate


def follow(rates, method=EMA, **options):
    """Train with one rate per epoch of ten steps; return the warnings."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=rates[0])
    averager = method(model, optimizer, **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for rate in rates:
            optimizer.param_groups[0]["lr"] = rate
            for _ in range(10):
                model(torch.ones(1, 2)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            averager.end_epoch()
            with averager.averaged():
                pass
    return [str(one.message) for one in caught]


def test_a_jump_after_a_fall_warns_once():
    # At step 80 the half-life is 8 steps, and 10 have passed: 2 ** (-10 / 8).
    (message,) = follow([1.0] * 4 + [0.1] * 3 + [1.0] + [0.1, 1.0])
    assert "rose from 0.1 to 1 since step 70" in message
    assert "still holds 42% of the weights from before" in message
    assert "call restart()" in message


@pytest.mark.parametrize(
    "rates",
    [
        [0.001, 0.01, 0.1, 1.0],  # a warm-up
        [1.0, 0.5, 0.1, 0.01],  # it falls
        [1.0] * 4 + [0.2] * 3 + [1.0],  # a small jump
        [1.0] * 4 + [0.0] * 3,
    ],
)
def test_other_rates_do_not_warn(rates):
    assert follow(rates) == []


def test_an_average_that_has_forgotten_does_not_warn():
    rates = [1.0] * 4 + [0.1] * 3 + [1.0]
    assert follow(rates, decay=constant(0.5)) == []
    assert len(follow(rates, decay=constant(0.9))) == 1


def test_switched_and_late_averages_do_not_warn():
    rates = [1.0] * 4 + [0.1] * 3 + [1.0]
    assert follow(rates, method=SwitchEMA, decay=constant(0.9)) == []
    assert follow(rates, start=100) == []


def test_a_restart_at_the_jump_is_enough():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    ema = EMA(model, optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for rate in (1.0, 0.01, 1.0):
            if rate != optimizer.param_groups[0]["lr"] and rate == 1:
                ema.restart()
            optimizer.param_groups[0]["lr"] = rate
            for _ in range(10):
                model(torch.ones(1, 2)).sum().backward()
                optimizer.step()
            ema.averaged_state_dict()


def test_the_largest_rate_of_all_groups_counts_and_odd_ones_are_unknown():
    first, second = nn.Linear(1, 1), nn.Linear(1, 1)
    groups = [{"params": first.parameters(), "lr": torch.tensor(0.5)}]
    groups.append({"params": second.parameters(), "lr": 0.2})
    optimizer = torch.optim.SGD(groups, lr=0.1)
    assert largest_rate([optimizer]) == 0.5
    on_device = torch.empty((), device="meta")  # reading it would raise
    for rate in (None, float("nan"), on_device):
        optimizer.param_groups[0]["lr"] = rate
        assert largest_rate([optimizer]) == 0.2
    assert largest_rate([]) == 0.0


def test_an_unknown_rate_is_no_fall():
    jumps = RateJumps()
    for step, rate in enumerate((1.0, 0.0, 1.0)):
        assert jumps.look(step, rate, decay=0.99) is None
