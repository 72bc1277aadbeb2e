"""Gains against training losses."""

import pytest

from switch_ema.analysis.gains import Gain
from switch_ema.analysis.mechanism import FittedMethod, MechanismPanel, draw_mechanism


def panel(**methods):
    found = {
        name.replace("_", "-"): FittedMethod(loss, Gain(gain, gain - 1, gain + 1))
        for name, (loss, gain) in methods.items()
    }
    return MechanismPanel("digits", "accuracy (%)", found)


FOUR = {"ema": (0.1, 0.0), "swa": (0.3, 1.0), "lawa": (0.2, 0.5), "pswa": (0.4, 3.0)}


def test_the_rank_correlation_is_that_of_averages():
    assert panel(**FOUR).rank_correlation == pytest.approx(1)
    assert panel(plain=(0.01, 9.0), **FOUR).rank_correlation == pytest.approx(1)
    down = {name: (loss, -gain) for name, (loss, gain) in FOUR.items()}
    assert panel(**down).rank_correlation == pytest.approx(-1)
    assert panel(ema=(0.1, 0.0), swa=(0.3, 1.0)).rank_correlation is None


def test_each_method_is_a_point_with_its_interval():
    figure = draw_mechanism([panel(**FOUR), panel(ema=(0.1, 0.0))], "EMA")
    first, second = figure.axes
    points = {
        (float(line.get_xdata()[0]), float(line.get_ydata()[0]))
        for line in first.lines
        if line.get_marker() not in ("", "None") and len(line.get_xdata())
    }
    assert points == set(FOUR.values())
    assert "rank correlation +1.00" in first.get_title()
    assert "rank" not in second.get_title()
    assert first.get_xscale() == "log"
    (legend,) = figure.legends
    assert len(legend.get_texts()) == 4
    with pytest.raises(ValueError, match="at least one method"):
        draw_mechanism([panel()], "EMA")
