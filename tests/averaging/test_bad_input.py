"""Bad values: one clear sentence at construction, nothing changed."""

import pytest
import torch

from switch_ema import EMA, LAWA, PSWA, SWA, Lookahead, SwitchEMA, swa_budget
from switch_ema.averaging.registry import create_averager
from switch_ema.contrib import LiteralEq3
from tests.averaging.helpers import (
    assert_same,
    batches,
    copy_of,
    network,
    sgd,
    train_step,
)


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        (EMA, {"decay": 1.2}, r"decay must be in \[0, 1\), got 1.2"),
        (EMA, {"update_every": 0}, "update_every must be a whole number of at least 1"),
        (EMA, {"buffers": "mean"}, "must be 'statistics' or 'average' or 'copy', got"),
        (EMA, {"dtype": torch.float16}, "dtype must be None, torch.float32, torch"),
        (EMA, {"include": "nothing"}, "include matches no tensor"),
        (EMA, {"steps_per_epoch": 0}, "steps_per_epoch must be a whole number"),
        (
            SwitchEMA,
            {"switch_every": 0},
            "switch_every must be a number above 0, got 0",
        ),
        (SwitchEMA, {"live_share": 1}, r"live_share must be in \[0, 1\), got 1"),
        (
            SwitchEMA,
            {"optimizer_state": "drop"},
            "must be 'keep' or 'reset', got 'drop'",
        ),
        (SwitchEMA, {"optimizer_state": "reset"}, "needs an optimizer"),
        (SWA, {"start": -1}, "start must be at least 0, got -1"),
        (
            LiteralEq3,
            {"every": 4},
            r"every must be Steps\(n\), such as Steps\(4\), got 4",
        ),
        (SWA, {"every": 0}, "every must be a number above 0, got 0"),
        (LAWA, {"k": 0}, "k must be a whole number of at least 1, got 0"),
        (PSWA, {"period": -2}, "period must be a number above 0, got -2"),
        (Lookahead, {"k": 2.5}, "k must be a whole number of at least 1, got 2.5"),
        (Lookahead, {"alpha": 0}, r"alpha must be in \(0, 1\], got 0"),
    ],
)
def test_bad_values(method, options, message):
    model = network()
    before = copy_of(model.state_dict())
    with pytest.raises(ValueError, match=message) as error:
        method(model, **options)
    assert "\n" not in str(error.value)
    assert_same(copy_of(model.state_dict()), before)


def test_a_failed_construction_leaves_no_hook():
    model = network()
    optimizer = sgd(model)
    with pytest.raises(ValueError, match="include"):
        EMA(model, optimizer, include="nothing")
    train_step(model, optimizer, next(batches(1)))
    assert not optimizer._optimizer_step_post_hooks


def test_unknown_options_are_not_swallowed():
    with pytest.raises(TypeError, match="momentum"):
        SwitchEMA(network(), momentum=0.9)


def test_a_model_that_is_none():
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module"):
        EMA([torch.zeros(1)])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_switch_onto_weights_that_are_not_finite_is_refused(value):
    model = network()
    sema = SwitchEMA(model, decay=0.9)
    with torch.no_grad():
        model.body.weight[0, 0] = value
    sema.update()
    with torch.no_grad():
        model.body.weight[0, 0] = 1.0
    before, state = copy_of(model.state_dict()), sema.state_dict()
    for call in (sema.switch, sema.end_epoch):
        with pytest.raises(FloatingPointError, match=r"average of body\.weight is not"):
            call()
    assert_same(copy_of(model.state_dict()), before)
    after = sema.state_dict()
    assert (after["switches"], after["epochs"]) == (0, 0)
    assert state.keys() == after.keys()


def test_unknown_methods_list_the_known_ones():
    with pytest.raises(ValueError, match=r"one of ema, switch-ema, .*got 'emma'"):
        create_averager("emma", network())


@pytest.mark.parametrize("arguments", [(0,), (10, 1.0), (10, -1)])
def test_swa_budgets_out_of_range(arguments):
    with pytest.raises(ValueError, match="must be"):
        swa_budget(*arguments)


@pytest.mark.parametrize(
    ("method", "value", "advice"),
    [
        (EMA, 0.999, r"write EMA\(model, decay=0.999\)"),
        (EMA, "auto", r"write EMA\(model, decay='auto'\)"),
        (SwitchEMA, 0.99, r"write SwitchEMA\(model, decay=0.99\)"),
        (SWA, 5, r"write SWA\(model, option=...\)"),
    ],
)
def test_an_option_in_the_place_of_the_optimizer_is_named(method, value, advice):
    with pytest.raises(TypeError, match=advice):
        method(network(), value)
