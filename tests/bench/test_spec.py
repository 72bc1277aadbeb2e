"""Names with options."""

import pytest

from switch_ema.bench.errors import UsageError
from switch_ema.bench.spec import Spec, parse_spec


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
