"""What is suggested for runs of different lengths."""

import pytest
from torch import nn

import switch_ema
from switch_ema import fraction, suggest, surviving_share


def test_a_run_that_does_not_over_train_gets_a_passive_average():
    found = suggest(steps_per_epoch=100, epochs=20)
    assert (found.method, found.decay, found.switch_every) == ("ema", "auto", None)
    assert found.final_decay == fraction(0.1)(1999)
    assert found.surviving_share == 1


def test_the_reason_tells_a_constant_learning_rate_from_one_that_decays():
    texts = {
        schedule: str(suggest(steps_per_epoch=9, epochs=9, schedule=schedule))
        for schedule in ("constant", "cosine", "step")
    }
    assert "noisy to the end" in texts["constant"]
    assert texts["cosine"] == texts["step"] != texts["constant"]


def test_a_run_that_over_trains_gets_switches_that_keep_a_third():
    found = suggest(steps_per_epoch=63, epochs=30, over_trains=True)
    assert (found.method, found.switch_every) == ("switch-ema", 1)
    assert found.decay == pytest.approx(1 - 1 / 63, abs=5e-4)
    share = surviving_share(found.decay, 63)
    assert found.surviving_share == pytest.approx(share, abs=0.005)


def test_few_steps_an_epoch_are_switched_less_often():
    found = suggest(steps_per_epoch=6, epochs=40, over_trains=True)
    assert found.switch_every == 4
    assert 0.3 < found.surviving_share < 0.45


def test_a_run_too_short_to_switch_is_told_so():
    found = suggest(steps_per_epoch=2, epochs=10, over_trains=True)
    assert found.method == "ema"
    assert "too few for 3 switches" in str(found)


@pytest.mark.parametrize("over_trains", [False, True])
def test_the_line_of_code_runs(over_trains):
    found = suggest(steps_per_epoch=6, epochs=40, over_trains=over_trains)
    names = vars(switch_ema) | {"model": nn.Linear(1, 1), "optimizer": None}
    names |= {"EMA": switch_ema.EMA, "SwitchEMA": switch_ema.SwitchEMA}
    assert eval(found.code, names).name == found.method


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epochs": 0}, "epochs must be a whole number"),
        ({"schedule": "flat"}, "schedule must be 'constant' or 'cosine' or"),
    ],
)
def test_bad_input_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        suggest(**({"steps_per_epoch": 5, "epochs": 5} | change))
