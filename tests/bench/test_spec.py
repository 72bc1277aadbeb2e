"""Names with options."""

import pytest

from switch_ema.bench.errors import UsageError
from switch_ema.bench.spec import (
    Change,
    Spec,
    parse_method_spec,
    parse_spec,
    parse_variation,
    parse_variations,
)


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        ("ema", "ema", {}),
        ("ema:decay=0.99", "ema", {"decay": 0.99}),
        (
            "a:x=1,y=None,z=True,w=text",
            "a",
            {"x": 1, "y": None, "z": True, "w": "text"},
        ),
        ("a:pair=(1,2),last=[3,4]", "a", {"pair": (1, 2), "last": [3, 4]}),
        ("swa:every=100it", "swa", {"every": "100it"}),
    ],
)
def test_reading(text, name, options):
    spec = parse_spec(text)
    assert (spec.name, spec.options) == (name, options)


@pytest.mark.parametrize("text", ["a:b", "a:=1", "a:b=", "a:1b=2"])
def test_what_cannot_be_read(text):
    with pytest.raises(UsageError, match="name:key=value"):
        parse_spec(text)


def test_spelling_is_the_same_for_the_same_options():
    first, second = Spec("a", {"x": 1, "b": 2}), Spec("a", {"b": 2, "x": 1})
    assert str(first) == str(second) == "a:b=2,x=1"
    assert parse_spec(str(first)).options == first.options


def test_defaults_give_way():
    assert Spec("a", {"x": 1}).with_defaults({"x": 5, "y": 6}).options == {
        "x": 1,
        "y": 6,
    }


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("ema:decay=0.9", ()),
        ("ema@lr*0.5:decay=0.9", (Change("lr", 0.5, is_factor=True),)),
        ("ema@lr*f", (Change("lr", "f", is_factor=True),)),
        ("ema@epochs*f", (Change("epochs", "f", is_factor=True),)),
        ("ema@epochs=52", (Change("epochs", 52),)),
        (
            "ema@lr=0.1,betas=(0.9,0.95)",
            (Change("lr", 0.1), Change("betas", (0.9, 0.95))),
        ),
    ],
)
def test_methods_may_change_the_optimizer(text, changes):
    spec = parse_method_spec(text)
    assert spec.name == "ema" and spec.changes == changes
    assert parse_method_spec(str(spec)) == spec


@pytest.mark.parametrize(
    "text",
    [
        *("ema@", "ema@lr", "ema@lr*", "ema@lr*0", "ema@lr=-1", "ema@lr*x", "ema@2"),
        *("ema@epochs=0", "ema@epochs=2.5", "ema@epochs=f", "ema@epochs*-1"),
    ],
)
def test_changes_that_cannot_be_read(text):
    with pytest.raises(
        UsageError, match="expected optimizer settings or epochs after @"
    ):
        parse_method_spec(text)


@pytest.mark.parametrize("text", ["lr", "lr=", "lr=1", "lr=1,1", "=1,2", "l r=1,2"])
def test_variations_that_cannot_be_read(text):
    with pytest.raises(UsageError, match="at least two different values"):
        parse_variation(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "at least two different values"),
        ("speed", "at least two different values"),
        ("0.1,lr", "at least two different values"),
        ("lr,epochs=3", "at least two different values"),
        ("lr,lr=0.1,0.2", "lr is given twice"),
    ],
)
def test_lists_of_variations_that_cannot_be_read(text, message):
    with pytest.raises(UsageError, match=message):
        parse_variations(text)
