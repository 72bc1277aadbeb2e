"""Methods as a comparison names them."""

import math
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

from switch_ema import EMA, SWA, Lookahead, SwitchEMA, fraction, half_life
from switch_ema.averaging.registry import METHODS
from switch_ema.averaging.schedules.decay import constant
from switch_ema.bench.errors import UsageError
from switch_ema.bench.method_names import CONTROL, DESCRIPTIONS, PLAIN
from switch_ema.bench.methods import (
    control_for,
    method_of,
    options_of,
    parse_method,
    surviving_share,
)


def made(text, defaults=None, epochs=20):
    model = nn.Linear(1, 1)
    method = parse_method(text, defaults or {})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return method.make(model, optimizer, epochs=epochs, folder=Path("unused"))


def test_every_method_of_the_library_can_be_compared():
    for name in METHODS:
        assert made(name).name == name
    assert made("plain") is None


def test_a_comparisons_switch_ema_is_silent_and_warning_filters_stay():
    """A trial makes methods in the user's process, whose filters are the user's."""
    before = list(warnings.filters)
    method = parse_method("switch-ema:decay=0.999,warmup=none", {})
    compared = method.make(nn.Linear(1, 1), None, epochs=5, folder=Path("unused"))
    assert warnings.filters == before
    own = SwitchEMA(nn.Linear(1, 1), decay=constant(0.999))
    messages = []
    for averager in (compared, own):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(50):
                averager.update()
            averager.end_epoch()
        messages.append([str(one.message) for one in caught])
    assert messages[0] == []
    assert len(messages[1]) == 1 and "keeps 2.5% of the progress" in messages[1][0]


def test_descriptions_are_the_docstrings_first_lines():
    found = {name: cls.__doc__.partition("\n")[0] for name, cls in METHODS.items()}
    assert {n: DESCRIPTIONS[n] for n in DESCRIPTIONS if n in METHODS} == found
    kept = {f"{name}+best" for name in (PLAIN, "ema", "switch-ema")}
    assert set(DESCRIPTIONS) - set(METHODS) == {PLAIN, CONTROL} | kept


def test_passive_methods_share_plain_training():
    shared = {n for n in DESCRIPTIONS if parse_method(n, {}).shares_training}
    passive = {"plain", "ema", "swa", "lawa", "posthoc-ema", "bema", "tail-ema", "swag"}
    assert shared == passive | {"plain+best", "ema+best"}
    assert CONTROL not in shared


def test_the_tasks_options_apply_unless_given():
    defaults = {"ema": {"decay": 0.9}}
    for text, decay in (("ema", 0.9), ("ema:decay=0.99", 0.99)):
        ema = made(text, defaults)
        assert isinstance(ema, EMA)
        for _ in range(2000):
            ema._counters.steps += 1
        assert ema.current_decay == decay


def test_decays_are_warmed_up_by_count_unless_told_otherwise():
    assert made("ema:decay=0.99").current_decay == 0.1
    assert made("ema:decay=0.99,warmup=none").current_decay == 0.99


def test_best_is_the_method_itself_with_its_options_and_the_tasks():
    ema = made("ema+best:decay=0.5", {"ema": {"update_every": 3}})
    assert isinstance(ema, EMA) and ema._update_every == 3
    assert made("plain+best") is None
    assert parse_method("switch-ema+best", {}).keeps_best
    with pytest.raises(UsageError, match="unknown method 'lawa\\+best'"):
        made("lawa+best")


def test_decays_are_spelled_on_the_command_line():
    assert made("ema:decay=auto").current_decay == fraction(0.1)(0)
    spelled = made("ema:decay=half_life(1k samples,samples_per_step=10),buffers=copy")
    assert spelled.current_decay == half_life("100it")(0)
    assert made("switch-ema:decay=auto,switch_every=10it").current_decay == 0
    for text, message in (
        ("ema:decay=banana", "a string must be 'auto' or"),
        ("ema:decay=auto,warmup=none", "a numeric decay, got 'auto'"),
        ("switch-ema:decay=auto,switch_every=5it", "more than 5 steps"),
    ):
        with pytest.raises(UsageError, match=message):
            made(text)


def test_what_depends_on_the_run_is_filled_in():
    swa, lookahead = made("swa"), made("lookahead")
    assert isinstance(swa, SWA) and isinstance(lookahead, Lookahead)
    epochs = [swa.averaged_models for _ in range(20) if swa.end_epoch() is False]
    assert epochs == [0] * 15 + [1, 2, 3, 4, 5]  # the last quarter of 20 epochs
    for _ in range(100):
        lookahead._count_step()
    assert lookahead.switches == 1  # k = 100, as in the paper


def test_a_share_of_the_run_is_that_of_its_epochs():
    assert "start='5ep'" in repr(made("ema:start=10%", epochs=50))
    assert "start='100it'" in repr(made("ema:start=100it", epochs=50))


def test_steps_are_written_with_it():
    sema = made("switch-ema:switch_every=3it")
    assert isinstance(sema, SwitchEMA)
    for _ in range(7):
        sema._count_step()
    assert sema.switches == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "emma",
            r"unknown method 'emma'; did you mean ema\? Known are plain",
        ),
        ("ema:decoy=1", "the options of ema are decay, update_every"),
        ("ema:decay=1.5", r"decay must be in \[0, 1\), got 1.5"),
        ("ema:warmup=slow", "warmup must be 'count' or 'none', got 'slow'"),
        ("plain:decay=0.9", "options of plain are none"),
        ("plain:include=0.*", "options of plain are none"),
        ("ema:device=banana", "'ema:device=banana': Expected one of cpu, "),
        ("ema:dtype=banana", "dtype must be None, torch.float32, .* got banana"),
    ],
)
def test_bad_methods(text, message):
    with pytest.raises(UsageError, match=message):
        parse_method(text, {})


@pytest.mark.parametrize("option", ["include=0.*", "include=0", "exclude=(1,'2.*')"])
def test_filters_name_tensors_of_the_tasks_model(option):
    model = nn.Sequential(*(nn.Linear(1, 1) for _ in range(3)))
    method = parse_method(f"ema:{option}", {})
    ema = method.make(model, None, epochs=1, folder=Path("unused"))
    assert {*ema.averaged_tensors()} == {"0.weight", "0.bias"}


def test_a_filter_that_matches_nothing_is_told_with_its_method():
    method = parse_method("ema:include=head.*", {})
    with pytest.raises(UsageError, match=r"'ema:include=head.\*': include matches no"):
        method.make(nn.Linear(1, 1), None, epochs=1, folder=Path("unused"))


@pytest.mark.parametrize("name", ["bfloat16", "torch.bfloat16"])
def test_dtypes_are_given_by_name(name):
    shadow = made(f"ema:dtype={name}").averaged_tensors()["weight"]
    assert shadow.dtype == torch.bfloat16


def test_options_are_listed():
    assert {"decay", "switch_every", "live_share", "buffers"} <= {
        *options_of("switch-ema")
    }
    assert "folder" not in options_of("posthoc-ema")


@pytest.mark.parametrize("decay", [0.9, 0.99])
@pytest.mark.parametrize(("every", "steps"), [("1", 63), ("2", 126), ("20it", 20)])
def test_the_surviving_share_is_that_of_a_straight_drift(decay, every, steps):
    label = f"switch-ema:decay={decay},switch_every={every}"
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.zero_()
        ema = EMA(model, decay=constant(decay))
        for _ in range(steps):
            model.weight += 1.0
            ema.update()
    followed = ema.averaged_state_dict()["weight"].item() / steps
    assert surviving_share(label, {}, 63) == pytest.approx(followed, rel=1e-4)
    x = (1 - decay) * steps
    continuous = 1 - (1 - math.exp(-x)) / x
    assert surviving_share(label, {}, 63) == pytest.approx(continuous, abs=0.05)


def test_the_share_is_that_of_the_task_unless_given():
    defaults = {"switch-ema": {"decay": 0.9, "live_share": 0.5}}
    own = surviving_share("switch-ema:live_share=0", defaults, 10)
    assert surviving_share("switch-ema", defaults, 10) == pytest.approx((1 + own) / 2)
    with pytest.raises(UsageError, match="f needs a Switch EMA with a numeric decay"):
        surviving_share("switch-ema:decay=slow", {}, 10)


@pytest.mark.parametrize(
    ("control", "partner"),
    [
        ("ema", ""),
        ("ema@lr*0.5", ""),
        ("ema@lr*f", "switch-ema:decay=0.9"),
        ("ema@lr*f:decay=0.99", "switch-ema:decay=0.99"),
        ("ema@epochs*f", "switch-ema:decay=0.9"),
        ("ema@epochs*0.5", ""),
        ("lookahead:alpha=f", "switch-ema:decay=0.9"),
        ("lookahead:alpha=0.5", ""),
        ("ema@lr=0.1,lr*f:decay=0.5", "switch-ema:decay=0.9"),
    ],
)
def test_a_control_has_the_share_of_its_partner(control, partner):
    others = ["plain", "switch-ema:decay=0.9", "switch-ema@lr=2:decay=0.99"]
    methods = [method_of(label) for label in others]
    assert control_for(method_of(control), methods) == partner
    if partner:
        assert control_for(method_of(control), []) == "switch-ema"
