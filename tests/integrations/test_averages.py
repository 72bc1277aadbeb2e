"""The averages of a callback of any trainer: settings, state and further decays."""

import copy
import warnings

import pytest
import torch

from switch_ema import EMA, Steps, constant
from switch_ema.integrations.averages import Averages, AveragingSettings
from switch_ema.integrations.best import BestBy
from tests.averaging.helpers import assert_same
from tests.integrations.helpers import OPTIONS, adam, loader, loss_of, network

BY = BestBy("score", higher_is_better=True, n=100)


def averages(method="ema", flat=False, **settings):
    model = network()
    optimizer = adam(model)
    options = {**OPTIONS, "flat": flat, **settings}
    settings = AveragingSettings.of(method, options)
    return model, optimizer, Averages(settings, model, optimizer)


def train(model, optimizer, epochs=1):
    for _ in range(epochs):
        for batch in loader():
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()


@pytest.mark.parametrize(
    ("decays", "message"),
    [
        (0.9, "decays must be a list"),
        ("auto", "decays must be a list"),
        ([0.9, 1.5], r"decay must be in \[0, 1\), got 1.5"),
        ([constant(0.9)], "numbers or strings"),
        (["soon"], "decay must be in"),
        ([True], "numbers or strings"),
        ([0.9, 0.9], "must differ from each other"),
    ],
)
def test_bad_decays_are_refused_at_once(decays, message):
    with pytest.raises(ValueError, match=message):
        AveragingSettings.of("ema", {"decays": decays})


def test_further_averages_see_a_step_before_its_switch():
    """A step from 0 to 1 counts half in their average, and is then switched to 0.2."""
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    options = {"decay": constant(0.8), "switch_every": Steps(1)}
    options["decays"] = ["constant(0.5)"]
    settings = AveragingSettings.of("switch-ema", options)
    found = Averages(settings, model, optimizer)
    model.weight.grad = -torch.ones(1, 1)
    optimizer.step()
    assert model.weight.item() == pytest.approx(0.2)
    (passive,) = found.further.values()
    assert passive.averaged_tensors()["weight"].item() == pytest.approx(0.5)


@pytest.mark.parametrize("flat", [False, True])
def test_a_further_average_is_that_of_its_decay_alone(flat):
    model, optimizer, found = averages(decays=[0.5, "auto"], flat=flat)
    train(model, optimizer)
    for decay in (0.5, "auto"):
        alone = network()
        own = adam(alone)
        ema = EMA(alone, own, decay=decay)
        train(alone, own)
        shown = found.further[f"ema_{decay}"].averaged_state_dict()
        assert_same(shown, ema.averaged_state_dict())


def test_killed_and_resumed_all_of_them_are_bit_for_bit():
    parts = averages(decays=[0.5], best=BY, evaluate="both")
    train(*parts[:2])
    parts[2].note({"score": 0.9})
    saved = copy.deepcopy([one.state_dict() for one in parts])
    again = averages(decays=[0.5], best=BY, evaluate="both")
    for one, state in zip(again, saved, strict=True):
        one.load_state_dict(state)
    for model, optimizer, found in (parts, again):
        train(model, optimizer)
        found.note({"score": 0.1})
        found.is_training = False
    whole, resumed = parts[2], again[2]
    assert_same(
        whole.further["ema_0.5"].averaged_state_dict(),
        resumed.further["ema_0.5"].averaged_state_dict(),
    )
    shown = whole.shown().averaged_state_dict()
    assert whole.best.is_better_than_last
    assert_same(shown, resumed.shown().averaged_state_dict())
    assert not torch.equal(
        shown["0.weight"], whole.averager.averaged_state_dict()["0.weight"]
    )


def test_what_a_checkpoint_lacks_is_named_and_the_rest_is_loaded():
    model, optimizer, simple = averages()
    train(model, optimizer)
    _, _, found = averages(decays=[0.5], best=BY)
    with pytest.warns(UserWarning) as said:
        found.load_state_dict(simple.state_dict())
    assert [str(one.message).split(",")[0] for one in said] == [
        "The checkpoint has no state of the average ema_0.5",
        "The checkpoint has no state of the best average",
    ]
    assert found.averager.steps == simple.averager.steps > 0
    # The other way round, what is not asked for is left.
    _, _, other = averages()
    other.load_state_dict(found.state_dict())
    assert other.averager.steps == found.averager.steps


def test_measuring_more_draws_no_random_numbers():
    _, _, found = averages(evaluate="both", decays=[0.5])
    before = torch.get_rng_state()
    metrics = found.measure_more(lambda: {"x": torch.rand(()).item()})
    assert set(metrics) == {"x_live", "x_ema_0.5"}
    assert torch.equal(torch.get_rng_state(), before)
    found.is_training = False
    assert found.measure_more(lambda: pytest.fail("is not asked")) == {}


def test_a_share_of_a_run_of_unknown_length_is_refused():
    """As in Ignite and Accelerate, which are made before the length is known."""
    with pytest.raises(ValueError, match="start='10%' needs the length of the run"):
        averages(start="10%")
    with pytest.raises(ValueError, match="start must be a number of epochs"):
        AveragingSettings.of("ema", {"start": "soon"})
    model, optimizer, found = averages(start="50% of 2ep", decays=[0.5])
    assert not any(one.has_average for one in (found.averager, *found.further.values()))
    train(model, optimizer)
    found.end_epoch()
    assert all(one.has_average for one in (found.averager, *found.further.values()))


def lags(scores, method="ema", by=BY):
    """Return the warnings of evaluations of the average and the live weights."""
    _, _, found = averages(method, best=by, evaluate="both")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for average, live in scores:
            found.note({"score": average, "score_live": live})
    return [str(one.message) for one in caught]


# With n = 100 the standard error is 0.04 at 0.8.
BEHIND, WITHIN = (0.7, 0.8), (0.73, 0.8)


def test_an_average_that_is_behind_the_live_weights_twice_warns_once():
    (message,) = lags([WITHIN, BEHIND, BEHIND, BEHIND, BEHIND])
    assert "better score than the average (0.8 and 0.7)" in message
    assert "restart()" in message
    lower = BestBy("score", higher_is_better=False, error=0.04)
    assert len(lags([(0.9, 0.8)] * 2, by=lower)) == 1


@pytest.mark.parametrize(
    "scores",
    [
        [BEHIND, WITHIN, BEHIND, WITHIN],
        [(0.8, 0.7)] * 3,
        [(0.7, float("nan"))] * 3,
    ],
)
def test_an_average_that_keeps_up_does_not_warn(scores):
    assert lags(scores) == []


def test_a_switched_average_is_not_compared_with_the_live_weights():
    assert lags([BEHIND] * 3, method="switch-ema") == []


def test_an_evaluation_of_other_data_is_no_score():
    _, _, found = averages(best=BY)
    for metrics in ({"other": 0.1}, {"score": 0.9}) * 2:
        found.note_one_of_several(metrics)
    assert found.best.scores == [0.9, 0.9]


def test_a_metric_that_no_evaluation_reports_is_named_the_second_time():
    _, _, found = averages(best=BY)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for name in ("a", "b"):
            found.note_one_of_several({name: 0.1})
        assert not caught
        found.note_one_of_several({"a": 0.1})
    (one,) = caught
    assert "needs the metric 'score'" in str(one.message)
    assert "only reported a, b." in str(one.message)
