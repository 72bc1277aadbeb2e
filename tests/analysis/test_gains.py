"""Differences to a baseline, several tasks in one picture."""

import math

import pytest
from matplotlib.colors import to_hex

from switch_ema.analysis.gains import Gain, GainPanel, draw_gains
from switch_ema.analysis.matplotlib_style import colour_of

HELPS, OPEN = Gain(2.0, 1.0, 3.0), Gain(-0.5, -1.5, 0.5)


def test_a_method_has_one_line_and_colour_in_every_panel():
    first = GainPanel("a", "accuracy (points)", {"ema": HELPS, "switch-ema": OPEN})
    second = GainPanel("b", "accuracy (points)", {"switch-ema": HELPS})
    figure = draw_gains([first, second])
    left, right = figure.axes
    names = [text.get_text() for text in left.get_yticklabels()]
    assert names == ["EMA", "Switch EMA"]
    _, interval, point = right.lines  # after the line at zero
    assert list(interval.get_xdata()) == [1.0, 3.0]
    assert list(point.get_ydata()) == [1]  # the place of Switch EMA, also without EMA
    assert point.get_color() == colour_of("switch-ema")
    # Filled where the interval leaves out zero, and only there.
    assert to_hex(point.get_markerfacecolor()) == colour_of("switch-ema")
    assert left.lines[-1].get_markerfacecolor() == "white"
    ties = GainPanel("c", "accuracy (points)", {"ema": Gain(-0.1, math.nan, math.nan)})
    assert draw_gains([ties]).axes[0].lines[-1].get_markerfacecolor() == "white"
    assert left.get_ylim() == right.get_ylim() == (1.5, -0.5)


def test_nothing_to_draw_is_refused():
    with pytest.raises(ValueError, match="at least one method, got none"):
        draw_gains([GainPanel("a", "accuracy", {})])
