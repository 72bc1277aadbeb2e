"""The decay that follows from the interval between two switches."""

import io

import pytest
import torch

from switch_ema import FusedSGD, Steps, SwitchEMA, create_averager, surviving_share
from tests.averaging.helpers import (
    assert_same,
    batches,
    epoch,
    move,
    network,
    scalar_model,
    sgd,
    shadow,
    train_step,
    weight,
)


@pytest.mark.parametrize(
    ("every", "epochs", "decay"),
    [(1, 1, 1 - 5 / 40), (2, 2, 1 - 5 / 80), (0.5, 1, 1 - 5 / 20)],
)
def test_the_length_of_an_epoch_is_learned_in_the_first(every, epochs, decay):
    sema = SwitchEMA(scalar_model(), decay="auto", switch_every=every)
    for _ in range(epochs):
        for _ in range(40):
            sema.update()
        sema.end_epoch()
    sema.update()
    assert sema.current_decay == pytest.approx(decay, abs=1e-15)


def test_before_that_the_steps_so_far_stand_for_it():
    sema = SwitchEMA(scalar_model(), decay="auto")
    decays = []
    for _ in range(8):
        sema.update()
        decays.append(sema.current_decay)
    assert decays == [0, 0, 0, 0, 0, 1 - 5 / 6, 1 - 5 / 7, 1 - 5 / 8]


def test_an_interval_in_steps_needs_no_epoch():
    sema = SwitchEMA(scalar_model(), decay="auto", switch_every=Steps(10))
    for _ in range(30):
        sema.update()
    assert sema.current_decay == 0.5


def test_four_fifths_of_a_drift_survive_each_switch():
    model = scalar_model()
    sema = SwitchEMA(model, decay="auto")
    for _ in range(4):
        start = weight(model)
        for _ in range(200):
            move(model, weight(model) + 1)
            sema.update()
        sema.end_epoch()
        kept = (weight(model) - start) / 200
        assert kept == pytest.approx(0.8, abs=0.04)
        assert weight(model) == shadow(sema)


def test_surviving_share_is_that_of_a_drift_that_is_followed_step_by_step():
    decay, average, steps = 0.9, 0.0, 30
    for live in range(1, steps + 1):
        average = decay * average + (1 - decay) * live
    assert surviving_share(decay, steps) == pytest.approx(average / steps, abs=1e-12)
    assert surviving_share(0.0, 7) == 1


def test_an_interval_of_five_steps_is_refused_as_soon_as_it_is_known():
    with pytest.raises(ValueError, match="more than 5 steps between two switches"):
        SwitchEMA(scalar_model(), decay="auto", switch_every=Steps(5))
    with pytest.raises(ValueError, match="got 4"):
        SwitchEMA(scalar_model(), decay="auto", steps_per_epoch=4)
    model = scalar_model()
    sema = SwitchEMA(model, decay="auto")
    for _ in range(5):
        move(model, weight(model) + 1)
        sema.update()
    with pytest.raises(ValueError, match="got 5: switch less often"):
        sema.end_epoch()
    assert (sema.epochs, sema.switches, weight(model)) == (0, 0, 5.0)


def test_a_short_epoch_later_on_is_no_reason_to_stop():
    sema = SwitchEMA(scalar_model(), decay="auto")
    for steps in (20, 3, 20):
        for _ in range(steps):
            sema.update()
        assert sema.end_epoch()


@pytest.mark.parametrize("method", ["ema", "switch-ema"])
@pytest.mark.parametrize("optimizer_class", [torch.optim.SGD, FusedSGD])
@pytest.mark.filterwarnings("ignore:No working C compiler")
def test_resuming_is_exact_also_in_the_first_epoch(method, optimizer_class):
    def run(stop):
        model = network()
        optimizer = optimizer_class(model.parameters(), lr=0.1, momentum=0.9)
        averager = create_averager(method, model, optimizer, decay="auto")
        for index, batch in enumerate(batches(16)):
            train_step(model, optimizer, batch)
            if index == 7:
                averager.end_epoch()
            if index == stop:
                file = io.BytesIO()
                parts = (model, optimizer, averager)
                torch.save([part.state_dict() for part in parts], file)
                file.seek(0)
                model = network(seed=4)
                optimizer = optimizer_class(model.parameters(), lr=0.1, momentum=0.9)
                averager = create_averager(method, model, optimizer, decay="auto")
                saved = torch.load(file, weights_only=True)
                for part, state in zip(
                    (model, optimizer, averager), saved, strict=True
                ):
                    part.load_state_dict(state)
        return model.state_dict(), averager.averaged_state_dict()

    expected = run(None)
    for stop in (4, 11):
        for found, wanted in zip(run(stop), expected, strict=True):
            assert_same(found, wanted)


@pytest.mark.usefixtures("arithmetic")
def test_a_decay_of_zero_copies_the_live_weights():
    model = network()
    optimizer = sgd(model)
    sema = SwitchEMA(model, optimizer, decay="auto", steps_per_epoch=8)
    train_step(model, optimizer, next(batches(1)))
    assert_same(sema.averaged_state_dict(), dict(model.state_dict()))
    epoch(model, optimizer, sema, seed=1, steps=7)
    assert sema.switches == 1
