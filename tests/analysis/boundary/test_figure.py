"""The figures show what was measured."""

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.collections import LineCollection

from switch_ema.analysis.boundary.figure import draw_boundaries, draw_measures
from switch_ema.analysis.boundary.measures import (
    PlaneGrid,
    accuracy,
    calibration_errors,
    measure_boundaries,
)
from switch_ema.analysis.boundary.summary import MethodBoundaries
from switch_ema.analysis.intervals import interval
from switch_ema.analysis.matplotlib_style import save_figure
from switch_ema.analysis.method_style import display_name

SEEDS, LABELLED, TESTED = 3, 8, 20
_RANDOM = np.random.default_rng(0)
X, X_TEST = (_RANDOM.uniform(-1, 1, (SEEDS, n, 2)) for n in (LABELLED, TESTED))
Y, Y_TEST = ((points[..., 0] > 0).astype(float) for points in (X, X_TEST))
GRID = PlaneGrid.around(X_TEST, size=41)


def method(name, steepness, shifts=(0.0, 0.1, 0.2)):
    def predict(points):
        stack = [steepness * (points[..., 0] - shift) for shift in shifts]
        return 1 / (1 + np.exp(-np.stack(stack)))

    odds = steepness * (X_TEST[..., 0] - np.array(shifts)[:, None])
    p = 1 / (1 + np.exp(-odds))
    return MethodBoundaries(
        method=name,
        boundaries=measure_boundaries(predict, GRID),
        probabilities=p,
        accuracy=accuracy(p, Y_TEST),
        calibration_error=calibration_errors(p, Y_TEST),
    )


def panels(methods, **options):
    figure = draw_boundaries(methods, x=X, y=Y, x_test=X_TEST, grid=GRID, **options)
    return figure, [ax for ax in figure.axes if ax.get_title()]


def lines_of(ax):
    """The confidence contours and the boundary, in this order."""
    return [c for c in ax.collections if isinstance(c, LineCollection)]


def test_one_panel_per_method_with_the_seeds_own_boundary():
    methods = [method("plain", 9), method("ema", 4)]
    _, axes = panels(methods, seed=2)
    assert len(axes) == 2
    for ax, own in zip(axes, methods, strict=True):
        name = display_name(own.method)
        assert ax.get_title() == f"{name}\naccuracy {own.accuracy[2]:.1f}%"
        thin, boundary = lines_of(ax)
        np.testing.assert_allclose(boundary.get_segments()[0][:, 0], 0.2)
        assert len(thin.get_segments()) == 2
        dots = ax.collections[0]
        p = own.probabilities[2]
        np.testing.assert_allclose(dots.get_array(), np.maximum(p, 1 - p))
        np.testing.assert_allclose(dots.get_offsets(), X_TEST[2])
        triangles = sum(len(c.get_offsets()) for c in ax.collections[1:3])
        assert triangles == LABELLED


def test_methods_have_colours_of_their_own():
    _, axes = panels([method("plain", 9), method("ema", 4)])
    colours = [tuple(lines_of(ax)[1].get_colors()[0]) for ax in axes]
    assert colours[0] != colours[1]


def test_a_classifier_without_boundary_says_so():
    _, (ax,) = panels([method("plain", 0)])
    assert [text.get_text() for text in ax.texts] == ["no boundary"]


def test_a_training_that_diverged_says_so():
    gone = method("plain", np.nan)
    _, (ax,) = panels([gone])
    assert ax.get_title() == "plain\ndiverged"
    assert [text.get_text() for text in ax.texts] == ["no boundary"]


def test_many_methods_take_several_rows():
    _, axes = panels([method(f"ema:decay=0.{i}", 3) for i in range(4)])
    assert len(axes) == 4
    assert len({round(ax.get_subplotspec().rowspan.start) for ax in axes}) == 2


def test_strips_show_every_seed_mean_and_interval():
    methods = [method("plain", 9), method("ema", 4)]
    figure = draw_measures(methods, ["local_width"])
    top, below = figure.axes
    expected = [own.values("local_width") for own in methods]
    for dots, values in zip(top.collections, expected, strict=True):
        np.testing.assert_allclose(dots.get_offsets()[:, 0], values)
    mean, bar = top.lines[:2]
    found = interval(expected[0])
    assert mean.get_xdata()[0] == found.mean
    assert tuple(bar.get_xdata()) == (found.low, found.high)
    shown = below.collections[0].get_offsets()[:, 0]
    np.testing.assert_allclose(shown, expected[1] - expected[0])
    assert below.get_xlabel() == "difference from plain"


def test_missing_values_are_counted():
    """Too flat a classifier has no width: its contours lie outside the window."""
    figure = draw_measures([method("plain", 9), method("ema", 0.1)], ["width"])
    assert [text.get_text() for text in figure.axes[0].texts] == ["n = 0"]


def test_long_names_are_folded():
    _, (ax,) = panels([method("switch-ema:decay=0.99,switch_every=2", 9)])
    first = ax.get_title().splitlines()[:2]
    assert first == ["Switch EMA,", "decay 0.99, switch every"]
    assert max(map(len, ax.get_title().splitlines())) <= 24


def test_one_method_has_no_differences():
    assert len(draw_measures([method("plain", 9)], ["width", "accuracy"]).axes) == 2


def test_drawing_leaves_the_settings_alone(tmp_path):
    before = dict(mpl.rcParams)
    figure, _ = panels([method("plain", 9), method("ema", 4)])
    save_figure(figure, tmp_path, "boundaries")
    assert dict(mpl.rcParams) == before
    assert (tmp_path / "boundaries.svg").stat().st_size > 1000


def test_a_seed_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match=r"seed must be in \[0, 3\), got 3"):
        panels([method("plain", 9)], seed=3)
