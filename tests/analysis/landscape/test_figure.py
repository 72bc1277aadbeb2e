"""What the drawings of landscapes show."""

import io

import numpy as np
import pytest

from switch_ema.analysis.landscape.figure import (
    caption,
    draw_line,
    draw_lines,
    draw_surfaces,
)
from switch_ema.analysis.landscape.surface import LandscapeLine, LandscapeSurface, Notes
from switch_ema.analysis.matplotlib_style import MARKERS

NOTES = Notes(direction="a random direction", seed=7, data="1,000 images")


def a_line():
    steps = np.linspace(-1, 1, 41)
    loss = np.stack([1 + steps**2, 0.5 + 2 * steps**2])
    loss[0, -3:] = np.nan
    accuracy = np.where(np.isnan(loss), np.nan, 90 - 20 * loss)
    values = {"accuracy": accuracy, "loss": loss}
    return LandscapeLine(steps, ("plain", "EMA"), values, NOTES)


def a_surface(shift=0.0, explained=(), hole=False):
    x, y = np.linspace(-2, 2, 9), np.linspace(-1, 1, 7)
    across, up = np.meshgrid(x, y)
    loss = 0.1 + (across - shift) ** 2 + 4 * up**2
    if hole:
        loss[0, :2] = np.nan
    paths = {"plain": np.array([[-2.0, 1.0], [0.0, 0.5], [1.0, 0.0]])}
    notes = Notes(direction="two directions of the path", explained=explained)
    values = {"loss": loss}
    return LandscapeSurface(x, y, values, paths, {"plain": 0.9}, "EMA", notes)


def drawn(figure):
    """Render the figure, which also checks every text and marker."""
    figure.savefig(io.BytesIO())
    return figure


def test_a_line_has_a_panel_for_the_loss_above_one_for_the_accuracy():
    figure = drawn(draw_line(a_line()))
    top, bottom = figure.axes
    assert (top.get_ylabel(), bottom.get_ylabel()) == ("loss", "accuracy (%)")
    assert top.get_shared_x_axes().joined(top, bottom)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["plain", "EMA"]


def test_curves_are_solid_with_their_gaps_and_a_marker_at_the_centre():
    line = a_line()
    top = draw_line(line).axes[0]
    curves = [curve for curve in top.lines if len(curve.get_xdata()) > 1]
    centres = [curve for curve in top.lines if len(curve.get_xdata()) == 1]
    for index, (curve, centre) in enumerate(zip(curves, centres, strict=True)):
        np.testing.assert_array_equal(curve.get_ydata(), line.values["loss"][index])
        assert curve.get_linestyle() == "-"
        first, stride = curve.get_markevery()
        assert (20 - first) % stride == 0
        assert centre.get_xdata()[0] == 0
        assert centre.get_marker() == curve.get_marker() == MARKERS[index]


def test_a_grid_has_the_loss_left_and_the_accuracy_right():
    line = a_line()
    figure = drawn(draw_lines({"one": line, "two": line}))
    left, *_, right = (axes for axes in figure.axes if axes.get_ylabel())
    assert [axes.get_title() for axes in figure.axes[:2]] == ["one", "two"]
    assert (left.get_ylabel(), right.get_ylabel()) == ("loss", "accuracy (%)")
    np.testing.assert_array_equal(left.lines[1].get_ydata(), line.values["loss"][1])
    assert left.lines[0].get_color() == right.lines[0].get_color()
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["plain", "EMA", "loss (left)", "metric (right)"]


def test_a_surface_has_levels_by_equal_factors_within_its_values():
    surface = a_surface()
    figure = drawn(draw_surfaces(surface))
    levels = figure.axes[0].collections[0].levels
    ratios = levels[1:] / levels[:-1]
    np.testing.assert_allclose(ratios, ratios[0])
    assert levels[0] == surface.values["loss"].min()
    assert levels[-1] >= surface.values["loss"].max()
    assert figure.axes[-1].get_ylabel() == "loss"


def test_surfaces_side_by_side_share_their_levels():
    figure = drawn(draw_surfaces([a_surface(), a_surface(shift=1.0)]))
    left, right = (panel.collections[0].levels for panel in figure.axes[:2])
    np.testing.assert_array_equal(left, right)
    assert left[-1] >= a_surface(shift=1.0).values["loss"].max()
    assert len(figure.legends) == 1


def test_paths_are_drawn_with_a_hollow_start_and_a_filled_end():
    surface = a_surface()
    panel = drawn(draw_surfaces(surface)).axes[0]
    path = surface.paths["plain"]
    curves = [curve for curve in panel.lines if len(curve.get_xdata()) == 3]
    np.testing.assert_array_equal(curves[-1].get_xydata(), path)
    start, end = panel.lines[-2:]
    np.testing.assert_array_equal(start.get_xydata(), path[:1])
    np.testing.assert_array_equal(end.get_xydata(), path[-1:])
    assert start.get_markerfacecolor() == "white"
    assert end.get_markerfacecolor() == curves[-1].get_color()


def test_axes_tell_the_explained_share():
    panel = draw_surfaces(a_surface(explained=(0.641, 0.27))).axes[0]
    assert panel.get_xlabel() == "component 1 (64.1%)"
    assert panel.get_ylabel() == "component 2 (27.0%)"
    assert draw_surfaces(a_surface()).axes[0].get_xlabel() == "step along direction 1"


def test_surfaces_that_are_flat_or_reach_zero_are_drawn():
    for values in (np.zeros((7, 9)), np.full((7, 9), 2.0), np.eye(7, 9) - 0.5):
        surface = a_surface()
        surface.values["loss"][:] = values
        drawn(draw_surfaces(surface))


def test_a_surface_of_gaps_alone_is_refused():
    surface = a_surface()
    surface.values["loss"][:] = np.nan
    with pytest.raises(ValueError, match="all points are gaps"):
        draw_surfaces(surface)


def test_the_caption_of_a_line_tells_points_direction_seed_data_and_gaps():
    assert caption(a_line()) == (
        "Loss and accuracy of plain, EMA at 41 points from -1 to 1 along a random "
        "direction (seed 7), measured on 1,000 images. 3 of 82 points are gaps, "
        "where the loss is not finite (plain 3)."
    )


def test_the_caption_of_a_surface_tells_what_is_off_the_plane():
    text = caption(a_surface(hole=True))
    assert text.startswith("Loss at 9 x 7 points around EMA, in the plane of two ")
    assert "from the centre: plain 90%." in text
    assert text.endswith("2 of 63 points are gaps, where the loss is not finite.")
    assert "gaps" not in caption(a_surface())
