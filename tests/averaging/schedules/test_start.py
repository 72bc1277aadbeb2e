"""What a start means, and which ones are refused."""

import math

import pytest

from switch_ema import EMA, SWA, Epochs, Steps
from switch_ema.averaging.schedules.progress import Position
from switch_ema.averaging.schedules.start import as_start, in_run
from switch_ema.contrib import TailEMA
from tests.averaging.helpers import scalar_model


@pytest.mark.parametrize(
    ("given", "meaning"),
    [
        (5, "'5ep'"),
        (0.5, "'0.5ep'"),
        ("5ep", "'5ep'"),
        (" 1k it", "'1000it'"),
        (Steps(7), "'7it'"),
        (Epochs(2), "'2ep'"),
        ("10% of 90ep", "'9ep'"),
        ("12.5% of 200it", "'25it'"),
        (0, "None"),
        ("0it", "None"),
        ("0% of 90ep", "None"),
    ],
)
def test_starts_in_all_units(given, meaning):
    assert repr(as_start(given)) == meaning


@pytest.mark.parametrize(
    "bad",
    [
        *(-1, math.nan, math.inf, True, None, lambda epoch: True),
        *("5", "soon", "-1ep", "5k samples", "", "101% of 90ep", "100% of 90ep"),
        *("10% of 90%", "10% of"),
    ],
)
@pytest.mark.parametrize("method", [EMA, TailEMA])
def test_other_starts_are_refused(method, bad):
    with pytest.raises(ValueError, match=r"start must be a number of epochs .*, got "):
        method(scalar_model(), start=bad)


def test_a_share_needs_the_length_of_the_run():
    with pytest.raises(ValueError, match=r"start='10%' needs the length of the run"):
        EMA(scalar_model(), start="10%")
    assert EMA(scalar_model(), start=in_run("10%", "90ep")).steps == 0
    assert [in_run(s, "9ep") for s in ("5ep", 3, "1% of 2ep")] == [
        "5ep",
        3,
        "1% of 2ep",
    ]


def test_a_text_where_a_number_is_needed_is_refused():
    with pytest.raises(
        ValueError, match="start must be a number, in the unit of every"
    ):
        SWA(scalar_model(), start="5ep")


def test_whole_epochs_are_those_that_have_ended():
    """The epoch before was shorter, which says nothing about this one."""
    start = as_start(2)
    assert start is not None
    assert not start.is_reached(Position(9, 1, 7, 2))
    assert start.is_reached(Position(12, 2, 0, 10))
    part = as_start(1.5)
    assert part is not None
    assert not part.is_reached(Position(14, 1, 4, 10))
    assert part.is_reached(Position(15, 1, 5, 10))
