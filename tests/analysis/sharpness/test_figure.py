"""The sharpness figure shows the numbers it was given."""

import pytest

from switch_ema.analysis.matplotlib_style import colour_of, save_figure
from switch_ema.analysis.sharpness.figure import draw_sharpness
from switch_ema.analysis.sharpness.measures import NoiseCurve
from switch_ema.analysis.sharpness.spectrum import Estimate

EIGENVALUES = {"plain": (9.0, 4.0, 2.0), "Switch EMA": (3.0, 1.0, -0.5)}


def curve(factor: float, scale: str = "filter") -> NoiseCurve:
    sigmas = (0.1, 0.2, 0.3)
    increases = tuple(Estimate(factor * s**2, 0.1 * s, 8) for s in sigmas)
    return NoiseCurve(scale, sigmas, increases)


def test_lines_are_the_numbers():
    curves = {"plain": curve(2.0), "Switch EMA": curve(1.0)}
    left, right = draw_sharpness(EIGENVALUES, curves).axes
    for index, name in enumerate(curves):
        assert left.lines[index].get_color() == colour_of(name)
        assert tuple(left.lines[index].get_ydata()) == EIGENVALUES[name]
        expected = [increase.mean for increase in curves[name].increases]
        assert list(right.lines[index].get_ydata()) == expected
        band = right.collections[index].get_datalim(right.transData)
        last = curves[name].increases[-1]
        assert band.y1 == pytest.approx(last.mean + last.error)
    assert list(left.get_xticks()) == [1, 2, 3]


def test_negative_eigenvalues_are_visible(tmp_path):
    curves = {"plain": curve(2.0), "Switch EMA": curve(1.0)}
    figure = draw_sharpness(EIGENVALUES, curves)
    assert figure.axes[0].get_ylim()[0] < -0.5
    png, svg, _ = save_figure(figure, tmp_path, "sharpness")
    assert png.stat().st_size and svg.stat().st_size


@pytest.mark.parametrize(
    ("scale", "words"),
    [("none", "all weights"), ("parameter", "each weight"), ("filter", "filter")],
)
def test_strength_of_the_noise_is_named(scale, words):
    figure = draw_sharpness({"plain": (1.0,)}, {"plain": curve(1.0, scale)})
    assert words in figure.axes[1].get_xlabel()


def test_bad_input():
    curves = {"plain": curve(2.0), "Switch EMA": curve(1.0, "none")}
    with pytest.raises(ValueError, match="the same scale"):
        draw_sharpness(EIGENVALUES, curves)
    with pytest.raises(ValueError, match="same methods"):
        draw_sharpness(EIGENVALUES, {"plain": curve(1.0)})
    with pytest.raises(ValueError, match="same methods"):
        draw_sharpness({}, {})
