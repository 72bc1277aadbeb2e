"""One name and one colour for each method, whatever it is drawn with."""

from switch_ema.analysis.matplotlib_style import COLOURS as PALETTE
from switch_ema.analysis.matplotlib_style import DASHES as LINES
from switch_ema.analysis.matplotlib_style import MARKERS as POINTS
from switch_ema.analysis.matplotlib_style import colour_of
from switch_ema.analysis.method_style import (
    COLOURS,
    DASHES,
    MARKERS,
    display_name,
    method_styles,
)
from switch_ema.bench.method_names import DESCRIPTIONS


def test_a_colour_does_not_depend_on_the_others():
    alone = method_styles(["switch-ema"])["switch-ema"]
    among = method_styles(
        ["swa", "mine", "switch-ema:decay=0.9", "switch-ema", "plain"]
    )
    assert {alone.colour} == {
        among["switch-ema"].colour,
        among["switch-ema:decay=0.9"].colour,
    }
    assert among["mine"].colour not in (0, 2, 3)
    assert colour_of("Switch EMA") == colour_of("switch-ema") == PALETTE[2]


def test_variants_and_strangers_can_be_told_apart():
    variants = [f"ema:decay=0.{i}" for i in range(6)]
    found = method_styles([*variants, *(f"method {i}" for i in range(20))])
    assert len({(look.colour, look.dash) for look in found.values()}) == 26


def test_every_method_has_a_display_name():
    names = [display_name(method) for method in DESCRIPTIONS]
    assert len(set(names)) == len(names)
    assert [n for n, m in zip(names, DESCRIPTIONS, strict=True) if n == m] == ["plain"]
    assert display_name("user.py:Mine") == "user.py:Mine"
    assert display_name("swa:include=(a,b)") == "SWA, include (a,b)"


def test_who_draws_has_as_many_as_there_are():
    assert (len(PALETTE), len(LINES), len(POINTS)) == (COLOURS, DASHES, MARKERS)
