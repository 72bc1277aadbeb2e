"""Adaptive switching: when it begins, what it goes back to, and resuming."""

import io
import math

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from switch_ema import StateMismatch, SwitchEMA, constant
from switch_ema.contrib import Adaptive
from tests.averaging.distributed.processes import run
from tests.averaging.helpers import (
    assert_same,
    copy_of,
    epoch,
    move,
    network,
    scalar_model,
    sgd,
    weight,
)

# Error 0.2 at epoch 2 is the best; 4 epochs later the NLL is above 1.03 * 0.5.
NLLS = (0.9, 0.6, 0.5, 0.51, 0.52, 0.54, 9.0, 9.0)
ERRORS = (0.4, 0.2, 0.3, 0.2, 0.3, 0.3, 0.9, 0.9)
SWITCHES = [False, False, False, False, False, True, True, True]


def probe_of(values):
    found = iter(values)
    return lambda model: next(found)


def followed(values, **options):
    """Epochs of one step each, after which the average is the epoch's number."""
    model = scalar_model()
    rule = Adaptive(probe_of(values), **options)
    sema = SwitchEMA(model, decay=lambda n: 0.0, switch_every=rule)
    switches, weights = [], []
    for number in range(1, len(values) + 1):
        move(model, float(number))
        sema.update()
        switches.append(sema.end_epoch())
        weights.append(weight(model))
    return switches, weights


def test_it_goes_back_to_the_best_average_and_then_switches_each_epoch():
    switches, weights = followed(list(zip(NLLS, ERRORS, strict=True)))
    assert switches == SWITCHES
    assert weights == [1, 2, 3, 4, 5, 4, 7, 8]  # of equal errors, the lower NLL


def test_it_goes_back_in_a_model_that_has_grown():
    model = nn.Sequential(scalar_model())
    rule = Adaptive(probe_of(list(zip(NLLS, ERRORS, strict=True))))
    sema = SwitchEMA(model, decay=lambda n: 0.0, switch_every=rule)
    for number in range(1, 7):
        if number == 5:
            model.append(scalar_model(8.0))
            sema.refresh()
            sema.load_state_dict(sema.state_dict())
        move(model[0], float(number))
        sema.update()
        assert sema.end_epoch() == (number == 6)
    assert (weight(model[0]), weight(model[1])) == (4, 8)


def test_both_conditions_are_needed():
    steady = [(0.5, 0.2)] * 8  # the error stalls, the NLL does not rise
    assert not any(followed(steady)[0])
    rising = [(0.5 + k, 0.9 - k / 10) for k in range(8)]  # the error still falls
    assert not any(followed(rising)[0])
    quick = list(zip(NLLS, ERRORS, strict=True))
    assert followed(quick, patience=1, tolerance=0.01)[0][3:5] == [True, True]


def test_the_probe_sees_the_average_in_evaluation_mode_without_gradients():
    model = network()
    seen = []

    def probe(shown):
        seen.append(
            (shown.training, torch.is_grad_enabled(), copy_of(shown.state_dict()))
        )
        return 0.5, 0.2

    optimizer = sgd(model)
    sema = SwitchEMA(
        model, optimizer, decay=constant(0.8), switch_every=Adaptive(probe)
    )
    epoch(model, optimizer, sema, seed=0)
    assert model.training
    assert seen[0][:2] == (False, False)
    assert_same(seen[0][2], sema.averaged_state_dict())


@pytest.mark.parametrize("bad", ["raises", math.nan, math.inf])
def test_a_probe_that_fails_skips_the_epoch_and_says_so_once(bad):
    values = list(zip(NLLS, ERRORS, strict=True))
    # Two epochs more, of which nothing is known.
    values[2:2] = [None, None] if bad == "raises" else [(bad, 0.0), (0.5, bad)]
    with pytest.warns(UserWarning, match="probe of Adaptive") as warned:
        switches, weights = followed(values)
    assert len(warned) == 1
    assert switches == [False, False, *SWITCHES]
    assert weights[7] == 6


@pytest.mark.parametrize("stop", [1, 4, 5, 6, 7])
def test_killed_and_resumed_it_gives_the_same_weights_bit_for_bit(stop):
    def make(model, first=0):
        optimizer = sgd(model)
        rule = Adaptive(probe_of(list(zip(NLLS, ERRORS, strict=True))[first:]))
        sema = SwitchEMA(model, optimizer, decay=constant(0.8), switch_every=rule)
        return model, optimizer, sema

    def train(parts, first, last):
        for seed in range(first, last):
            epoch(*parts, seed)
        return parts

    whole = train(make(network()), 0, len(NLLS))
    killed = train(make(network()), 0, stop)
    file = io.BytesIO()
    torch.save([part.state_dict() for part in killed], file)
    train(killed, stop, stop + 1)
    file.seek(0)
    again = make(network(seed=3), first=stop)
    for part, state in zip(again, torch.load(file, weights_only=True), strict=True):
        part.load_state_dict(state)
    train(again, stop, len(NLLS))
    assert again[2].switches == whole[2].switches == 3
    assert_same(again[0].state_dict(), whole[0].state_dict())
    assert_same(again[2].averaged_state_dict(), whole[2].averaged_state_dict())


def test_reset_forgets_what_was_seen():
    model = scalar_model()
    rule = Adaptive(lambda model: (0.5, 0.2))
    sema = SwitchEMA(model, switch_every=rule)
    fresh = sema.state_dict()["adaptive"]
    sema.update()
    sema.end_epoch()
    assert sema.state_dict()["adaptive"] != fresh
    sema.reset()
    assert sema.state_dict()["adaptive"] == fresh


@pytest.mark.parametrize(
    "state",
    [
        3,
        {"seen": {}},
        {"seen": {"best_nll": "x"}, "best": {}},
        {"seen": {"other": 1}, "best": {}},
        {"seen": {}, "best": {"other": torch.zeros(1)}},
    ],
)
def test_states_that_do_not_fit_are_refused(state):
    sema = SwitchEMA(scalar_model(), switch_every=Adaptive(lambda model: (0.5, 0.2)))
    with pytest.raises(StateMismatch):
        sema.load_state_dict(sema.state_dict() | {"adaptive": state})
    plain = SwitchEMA(scalar_model())
    with pytest.raises(StateMismatch, match="lacks adaptive"):
        sema.load_state_dict(plain.state_dict())


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="probe must be a callable"):
        Adaptive(3)
    with pytest.raises(ValueError, match="patience"):
        Adaptive(lambda model: (1, 1), patience=0)
    with pytest.raises(ValueError, match="neither switch_start nor"):
        rule = Adaptive(lambda model: (1, 1))
        SwitchEMA(scalar_model(), switch_every=rule, switch_start=3)


def _ranks():
    rank = torch.distributed.get_rank()
    model = DistributedDataParallel(network())
    values = list(zip(NLLS, ERRORS, strict=True))
    mine = probe_of(values if rank == 0 else [(0.1, 0.1)] * len(values))
    optimizer = sgd(model)
    rule = Adaptive(mine)
    sema = SwitchEMA(model, optimizer, decay=constant(0.8), switch_every=rule)
    switches = [epoch(model, optimizer, sema, seed) for seed in range(len(values))]
    return switches, sema.live_state_dict()


def test_rank_0_decides_for_all():
    (switches, live), (others, other) = run(2, _ranks)
    assert switches == others == SWITCHES
    assert_same(live, other)
