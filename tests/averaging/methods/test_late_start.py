"""Averages that begin later than the training."""

import copy
import warnings

import pytest
import torch

from switch_ema import EMA, FusedSGD, StateMismatch, Steps, constant, count_warmup
from switch_ema.averaging.methods import reference as slow
from switch_ema.contrib import TailEMA
from tests.averaging.helpers import (
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


def test_a_trajectory_worked_out_by_hand():
    """1 -> 2 -> 3 (begins) -> 4 -> 5 with half of the old average."""
    model = scalar_model()
    ema = EMA(model, decay=constant(0.5), start="3it")
    shown = []
    for value in (1.0, 2.0, 3.0, 4.0, 5.0):
        move(model, value)
        ema.update()
        shown.append(shadow(ema))
    assert shown == [1.0, 2.0, 3.0, 3.5, 4.25]


def test_before_the_start_the_average_is_the_live_model_at_any_time():
    model = scalar_model(1.0)
    ema = EMA(model, start=1)
    move(model, 2.0)
    assert not ema.has_average and ema.current_decay == 0
    assert shadow(ema) == ema.averaged_tensors()["weight"].item() == 2.0
    with pytest.raises(RuntimeError, match="no average to recalibrate yet"):
        ema.recalibrate([])
    ema.update()
    assert not ema.end_epoch()
    assert ema.has_average
    move(model, 3.0)
    assert shadow(ema) == 2.0  # at the end of the first epoch


def test_the_schedule_counts_from_the_start():
    model = scalar_model()
    ema = EMA(model, decay=count_warmup(0.999), start=Steps(100))
    for _ in range(101):
        ema.update()
    assert ema.current_decay == 0.1
    ema.update()
    assert ema.current_decay == pytest.approx(2 / 11)


STARTS = {
    "steps": ({"start": "3it"}, {"start_steps": 3}),
    "epochs": ({"start": 2}, {"start_epochs": 2}),
    "share": ({"start": "25% of 12it"}, {"start_steps": 3}),
}


@pytest.mark.parametrize("optimizer", [sgd, lambda m: FusedSGD(m.parameters(), lr=0.1)])
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize(("method", "every"), [(EMA, 1), (EMA, 2), (TailEMA, 1)])
def test_equals_the_reference_also_when_resumed(method, every, start, optimizer):
    options, meaning = STARTS[start]
    decay = constant(0.7)
    options = options | {"decay": decay, "update_every": every}
    model = network().double()
    stepper = optimizer(model)
    averager = method(model, stepper, **options)
    weights = copy_of(dict(model.named_parameters()))
    if method is EMA:
        oracle = slow.ReferenceEMA(weights, decay, every, **meaning)
    else:
        oracle = slow.ReferenceTailEMA(weights, set(weights), decay, 0.5, **meaning)
    for epoch in range(4):
        for batch in batches(2, seed=epoch, dtype=torch.float64):
            train_step(model, stepper, batch)
            oracle.after_step(copy_of(dict(model.named_parameters())))
            average = averager.averaged_state_dict()
            for name, value in oracle.shadow.items():
                torch.testing.assert_close(average[name], value)
        averager.end_epoch()
        oracle.after_epoch(copy_of(dict(model.named_parameters())))
        saved = copy.deepcopy(averager.state_dict())
        averager.detach()
        averager = method(model, stepper, **options)
        averager.load_state_dict(saved)
        assert averager.has_average is (oracle.began is not None)


def test_a_resumed_run_is_bit_for_bit_the_uninterrupted_one():
    whole = network()
    stepper = sgd(whole)
    ema = EMA(whole, stepper, start="5it", decay=0.9)
    for step, batch in enumerate(batches(12)):
        if step in (3, 7):  # while it waits, and while it averages
            saved = copy.deepcopy(
                [whole.state_dict(), stepper.state_dict(), ema.state_dict()]
            )
            other = network(seed=1)
            again = sgd(other)
            resumed = EMA(other, again, start="5it", decay=0.9)
            other.load_state_dict(saved[0])
            again.load_state_dict(saved[1])
            resumed.load_state_dict(saved[2])
            ema.detach()
            whole, stepper, ema = other, again, resumed
        train_step(whole, stepper, batch)
    plain = network()
    own = sgd(plain)
    expected = EMA(plain, own, start="5it", decay=0.9)
    for batch in batches(12):
        train_step(plain, own, batch)
    assert_same(ema.averaged_state_dict(), expected.averaged_state_dict())
    assert_same(ema.live_state_dict(), expected.live_state_dict())


def test_a_reset_waits_again_and_a_taken_over_average_does_not_wait():
    model = scalar_model()
    ema = EMA(model, decay=constant(0.5), start="2it")
    for _ in range(3):
        ema.update()
    ema.reset()
    assert not ema.has_average
    ema.load_average({"weight": torch.tensor([[8.0]])}, steps=50)
    assert shadow(ema) == 8.0
    ema.update()
    assert shadow(ema) == 4.0


def test_states_with_and_without_a_start():
    waiting = EMA(scalar_model(), start="2it").state_dict()
    assert waiting["average_start"] is None
    running = EMA(scalar_model()).state_dict()
    assert "average_start" not in running
    with pytest.raises(StateMismatch, match="average_start is None"):
        EMA(scalar_model()).load_state_dict(waiting)
    with pytest.raises(StateMismatch, match="lacks average_start"):
        EMA(scalar_model(), start="2it").load_state_dict(running)
    for bad in (-1, 7, "2", True, 1.0):
        ema = EMA(scalar_model(), start="2it")
        with pytest.raises(StateMismatch, match="average_start is"):
            ema.load_state_dict(waiting | {"average_start": bad})
        assert not ema.has_average


def test_waiting_does_not_warn_of_missing_updates():
    model = network()
    optimizer = sgd(model)
    ema = EMA(model, optimizer, start="1000it")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for batch in batches(3):
            train_step(model, optimizer, batch)
        ema.averaged_state_dict()
