"""What lists say about the options of tasks and methods."""

from typing import Literal

import pytest

from switch_ema.averaging.registry import METHODS
from switch_ema.bench.loading import described_options as options_of_task
from switch_ema.bench.methods import described_options, parse_method
from switch_ema.bench.option_docs import Option, meanings_of, values_of


class Base:
    """A task.

    Args:
        seed: random seed.
        size: number of examples,
            see :class:`switch_ema.bench.Task` and ``more``.
        mode: overridden below.

    Returns:
        Nothing: this is no option.
    """

    modes = ("fast", "slow")


class Mine(Base):
    """Another.

    Args:
        mode: how.
    """

    def __init__(
        self,
        seed: int,
        *,
        size: int | None = None,
        mode: str = "fast",
        order: Literal["up", "down"] = "up",
        share: float = 0.5,
        silent: bool = False,
        path: str = "",
    ) -> None: ...


class Unresolved(Base):
    def __init__(self, seed: int, *, size: "Nowhere") -> None: ...  # noqa: F821


def test_the_own_docstring_comes_before_that_of_a_base():
    assert meanings_of(Mine) == {
        "seed": "random seed",
        "size": "number of examples, see Task and more",
        "mode": "how",
    }


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("mode", "fast or slow"),
        ("order", "up or down"),
        ("size", "a whole number"),
        ("share", "a number"),
        ("silent", "True or False"),
        ("path", ""),
    ],
)
def test_values_come_from_class_attributes_and_hints(option, values):
    assert values_of(Mine, option) == values
    assert values_of(Unresolved, "size") == ""


def test_a_task_of_the_user_is_listed_as_far_as_it_is_described(tiny):
    from switch_ema.bench.loading import load_task_class

    options = options_of_task(load_task_class(tiny)[0])
    assert options[0] == Option("noise", "0.5", "", "")


@pytest.mark.parametrize("method", METHODS)
def test_every_option_of_a_method_is_described_and_can_be_typed(method):
    for option in described_options(method):
        assert option.meaning and option.values, option.name
        assert "callable" not in option.meaning and "predicate" not in option.meaning
        if option.default not in ("None", "3/4 of the epochs"):
            parse_method(f"{method}:{option.name}={option.default}", {})


@pytest.mark.parametrize(
    "text",
    [
        'ema:decay=half_life(500it),include=("head*","norm*"),dtype=bfloat16',
        "switch-ema:switch_every=100it,optimizer_state=reset,buffers=copy",
        "posthoc-ema:sigma_rel=(0.05,0.1)",
        "ema:start=500it",
        "ema:start=10% of 90ep",
    ],
)
def test_the_examples_in_the_lists_are_accepted(text):
    assert parse_method(text, {}).label == text
