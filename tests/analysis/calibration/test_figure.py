"""The reliability diagram shows the bins it was given."""

import pytest
import torch

from switch_ema.analysis.calibration.figure import draw_reliability
from switch_ema.analysis.calibration.measures import Predictions, reliability
from switch_ema.analysis.matplotlib_style import COLOURS, save_figure


def methods(count: int) -> dict[str, tuple]:
    logits, labels = 2 * torch.randn(200, 3), torch.randint(3, (200,))
    return {
        f"method {index}": reliability(
            Predictions.from_logits((index + 1) * logits, labels), 10
        )
        for index in range(count)
    }


def test_points_and_shares_are_those_of_the_bins():
    found = methods(2)
    top, bottom = draw_reliability(found).axes
    for index, bins in enumerate(found.values()):
        filled = [b for b in bins if b.count]
        line = top.containers[index].lines[0]
        assert line.get_color() == COLOURS[index]
        assert list(line.get_xdata()) == [b.confidence for b in filled]
        assert list(line.get_ydata()) == [b.accuracy for b in filled]
        shares = bottom.patches[index].get_data().values
        assert list(shares) == pytest.approx([b.count / 2 for b in bins])


def test_legend_names_methods_with_their_error():
    (legend,) = draw_reliability(methods(2)).legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names[0].startswith("method 0 (ECE ") and names[1].startswith("method 1")


def test_many_methods_are_drawn_without_touching_the_diagram(tmp_path):
    figure = draw_reliability(methods(7))
    png, svg, _ = save_figure(figure, tmp_path, "reliability")
    assert png.stat().st_size and svg.stat().st_size
    below = figure.axes[1].get_tightbbox().y0
    assert figure.legends[0].get_window_extent().y1 <= below


def test_no_methods():
    with pytest.raises(ValueError, match="at least one method"):
        draw_reliability({})
