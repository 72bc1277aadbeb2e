"""Metrics against the epochs, several tasks in one picture."""

import pytest

from switch_ema.analysis.convergence.figure import Curve, CurvePanel, draw_convergence
from switch_ema.analysis.matplotlib_style import colour_of


def panel(title, *methods, shown=None):
    curve = Curve([1, 2, 3, 4], [1.0, 2.0, 3.0, 3.5], [0.1, 0.1, 0.2, 0.1])
    return CurvePanel(title, "accuracy (%)", dict.fromkeys(methods, curve), shown)


def test_a_method_has_its_colour_in_every_panel_and_one_place_in_the_legend():
    panels = [panel("a", "plain", "switch-ema", shown=(0, 9)), panel("b", "switch-ema")]
    figure = draw_convergence(panels)
    first, second = figure.axes
    assert first.lines[1].get_color() == second.lines[0].get_color()
    assert second.lines[0].get_color() == colour_of("switch-ema")
    assert list(first.lines[1].get_ydata()) == [1.0, 2.0, 3.0, 3.5]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["plain", "Switch EMA"]
    assert first.get_ylim() == (0, 9)


def test_nothing_to_draw_is_refused():
    with pytest.raises(ValueError, match="at least one curve, got none"):
        draw_convergence([panel("a")])
