"""What ``help()`` and an editor show of every method."""

import inspect
import re
import typing

import pytest
import torch
from torch import nn

from switch_ema import (
    EMA,
    METHODS,
    Averager,
    Best,
    SwitchEMA,
    attach,
    constant,
    create_averager,
    half_life,
)
from switch_ema.averaging.registry import MethodOptions
from switch_ema.contrib import TailEMA

SHARED = inspect.signature(Averager).parameters
COPIES = {"lookahead", "snoo", "literal-eq3"}
"""Methods whose default is ``buffers="copy"``."""


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_every_option_is_in_the_signature_with_its_default(method):
    parameters = inspect.signature(method).parameters
    assert parameters.keys() >= SHARED.keys()
    assert not any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    own = [p for p in parameters.values() if p.kind is p.KEYWORD_ONLY]
    required = [p.name for p in own if p.default is p.empty]
    assert required == (["folder"] if method.name == "posthoc-ema" else [])


def documented(method) -> dict[str, str]:
    """The arguments that a docstring lists, with their descriptions."""
    text = inspect.getdoc(method)
    assert text is not None
    section = text.split("Args:\n")[1].split("\n\n")[0]
    parts = re.split(r"^    (\w+): ", section, flags=re.MULTILINE)[1:]
    return {
        n: " ".join(d.split()) for n, d in zip(parts[::2], parts[1::2], strict=True)
    }


@pytest.mark.parametrize("method", [Averager, *METHODS.values()])
def test_every_argument_is_documented(method):
    assert list(documented(method)) == list(inspect.signature(method).parameters)


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_shared_options_are_those_of_the_base_class(method):
    """Editors show defaults only if each constructor repeats them; they stay equal."""
    parameters = inspect.signature(method).parameters
    differ = [n for n, one in SHARED.items() if parameters[n] != one]
    assert differ == (["buffers"] if method.name in COPIES else [])
    assert parameters["buffers"].annotation == SHARED["buffers"].annotation
    if differ:
        assert parameters["buffers"].default == "copy"
    assert [n for n in parameters if n in SHARED] == list(SHARED)
    options = list(SHARED)[2:]
    assert list(parameters)[-len(options) :] == options
    texts, model = documented(method), documented(EMA)
    assert {n: texts[n] for n in options} == {n: model[n] for n in options}
    types = typing.get_type_hints(MethodOptions)
    assert {n: types[n] for n in options} == {n: SHARED[n].annotation for n in options}


def test_an_averager_says_what_it_is_and_how_far_it_has_come():
    model = nn.Linear(1, 1)
    sema = SwitchEMA(model, decay=constant(0.75), steps_per_epoch=2)
    start = "SwitchEMA(decay=constant(0.75), current_decay=0.75, "
    assert repr(sema) == f"{start}steps=0, epochs=0, switches=0)"
    sema.update()
    sema.end_epoch()
    assert repr(sema) == f"{start}steps=1, epochs=1, switches=1)"


@pytest.mark.parametrize(
    ("method", "decay", "expected"),
    [
        (EMA, 0.999, "EMA(decay=count_warmup(0.999), current_decay=0.1, "),
        (EMA, "auto", "EMA(decay=fraction(0.1), current_decay=0.000976562, "),
        (EMA, "half_life(500it)", "EMA(decay=half_life(500it), "),
        (EMA, half_life("0.1ep"), "EMA(decay=half_life(0.1ep), "),
        (EMA, abs, "EMA(decay=abs, "),
        (SwitchEMA, "auto", "SwitchEMA(decay='auto', current_decay=0, "),
        (TailEMA, 0.9, "TailEMA(decay=count_warmup(0.9), share=0.5, "),
    ],
)
def test_the_configured_decay_is_shown_beside_the_current_one(method, decay, expected):
    assert repr(method(nn.Linear(1, 1), decay=decay)).startswith(expected)


def test_what_is_made_around_an_averager_has_a_short_text():
    model = nn.Linear(1, 1)
    ema = EMA(model, decay=constant(0.9))
    best = Best(ema, higher_is_better=True, n=100)
    assert repr(best) == "Best('ema', best_epoch=None)"
    best.update(0.9)
    best.update(0.5)
    text = "Best('ema', best_epoch=1, best=0.9, last=0.5, shown='best')"
    assert repr(best) == text
    assert repr(ema.teacher(training=True)) == "Teacher(Linear, training=True)"
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    attached = attach(optimizer, [1], model=model, decay=constant(0.9))
    assert repr(attached) == f"Attached({ema!r}, loader=list)"
    assert "loader=None" in repr(attach(optimizer, model=model))


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_a_short_text(method, tmp_path):
    options = {"folder": tmp_path} if method == "posthoc-ema" else {}
    averager = create_averager(method, nn.Linear(1, 1), **options)
    text = repr(averager)
    assert text.startswith(f"{type(averager).__name__}(")
    assert "current_decay=" in text
    assert text.endswith("steps=0, epochs=0, switches=0)")


def test_type_checkers_know_every_option():
    """``create_averager`` and the callbacks take these, and no others."""
    known = {
        parameter.name
        for method in METHODS.values()
        for parameter in inspect.signature(method).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    assert set(MethodOptions.__annotations__) == known
