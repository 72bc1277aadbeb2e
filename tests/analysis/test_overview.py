"""The figure of many comparisons."""

import math

import pytest

from switch_ema.analysis.gains import Gain
from switch_ema.analysis.overview import OverviewLine, draw_overview

LINES = [
    OverviewLine(
        "video",
        "SimVP",
        {"a - b": Gain(0.5, -0.2, 1.2), "a - c": Gain(-30.0, -40.0, -20.0)},
        published=1.5,
    ),
    OverviewLine("video", "PredRNN", {"a - b": Gain(0.0, math.nan, math.nan)}),
    OverviewLine("language", "LSTM", {"a - b": Gain(3.0, 2.0, 4.0)}),
]


def test_every_line_has_its_points_below_its_group():
    axes = draw_overview(LINES, "published").axes[0]
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == ["SimVP", "PredRNN", "LSTM"]
    assert [text.get_text() for text in axes.texts] == ["Video", "Language"]
    assert list(axes.get_yticks()) == [1, 2, 4]
    points = {
        (float(line.get_xdata()[0]), line.get_markerfacecolor() == "white")
        for line in axes.lines
        if line.get_marker() in ("o", "s") and len(line.get_xdata()) == 1
    }
    assert points == {(0.5, True), (-30.0, False), (0.0, True), (3.0, False)}
    crosses = [line for line in axes.lines if line.get_marker() == "x"]
    assert [list(line.get_xdata()) for line in crosses] == [[1.5], []]
    entries = [text.get_text() for text in axes.get_legend().get_texts()]
    assert entries == ["a - b", "a - c", "published"]
    low, high = axes.get_xlim()
    assert low == -high and high > 40


def test_nothing_to_draw():
    with pytest.raises(ValueError, match="must not be empty"):
        draw_overview([], "published")
