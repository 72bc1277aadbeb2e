"""Figures: valid for plotly, the right numbers, methods told apart."""

import json
import math
import re
from importlib.resources import files

import plotly.graph_objects as go  # type: ignore[import-untyped]
import pytest

from switch_ema.analysis.matplotlib_style import COLOURS as style_colours
from switch_ema.analysis.method_style import COLOURS
from switch_ema.bench.report.convergence import convergence
from switch_ema.bench.report.costs import costs
from switch_ema.bench.report.curves import Band, visible_range
from switch_ema.bench.report.differences import differences
from switch_ema.bench.report.figures import Figure
from switch_ema.bench.report.page_style import page_styles
from switch_ema.bench.stats.paired import paired_differences
from switch_ema.bench.task import Metric
from tests.bench.report.synthetic import (
    ACCURACY,
    LOSS,
    make_diverged_task,
    make_summary,
    make_task,
)


def all_figures() -> list[Figure]:
    summary = make_summary()
    looks = page_styles(summary.tasks)
    figures = []
    for task in summary.tasks:
        figures += [convergence(task, m, looks, m.name) for m in task.metrics]
        figures += [differences(task, ACCURACY, looks, "pairs"), costs(task, "costs")]
    return figures


def test_plotly_accepts_every_figure() -> None:
    for figure in all_figures():
        data = figure.for_plotly()
        json.dumps(data, allow_nan=False)
        go.Figure(data=data["traces"], layout=data["layout"])


def test_axes_are_labelled_with_units() -> None:
    accuracy, loss, pairs, bars = all_figures()[:4]
    assert accuracy.layout["yaxis"]["title"]["text"] == "accuracy (%)"
    assert loss.layout["yaxis"]["title"]["text"] == "test loss"
    assert "percentage points" in pairs.layout["xaxis"]["title"]["text"]
    assert "seconds" in bars.layout["xaxis"]["title"]["text"]


def test_captions_say_n_and_what_the_band_is() -> None:
    accuracy, _, pairs, _ = all_figures()[:4]
    assert "8 seeds" in accuracy.caption
    assert "one standard error of the mean to each side" in accuracy.caption
    assert "n = 8" in pairs.caption
    assert "97% confidence interval" in pairs.caption


def test_a_diverged_seed_leaves_the_mean_and_is_told() -> None:
    task = make_diverged_task()
    figure = convergence(task, ACCURACY, page_styles([task]), "x")
    line = next(t for t in figure.traces if t.get("name") == "Lookahead")
    assert all(map(math.isfinite, line["y"]))
    assert "n = 8" in line["customdata"][0].replace("\xa0", " ")
    assert "n = 7" in line["customdata"][-1].replace("\xa0", " ")
    assert "n = 7 to 8" in figure.caption


@pytest.mark.parametrize("metric", [ACCURACY, LOSS])
def test_dots_and_mean_agree_with_the_statistics(metric: Metric) -> None:
    task = make_diverged_task()
    for result in task.results[metric.name]:
        if result.difference is None:
            continue
        pairs = paired_differences(
            task.curves[metric.name],
            result.method,
            "plain",
            higher_is_better=metric.higher_is_better,
        )
        assert len(pairs) == result.difference.n
        mean = sum(pairs.values()) / len(pairs)
        assert mean == pytest.approx(result.difference.mean)


def test_an_exploding_method_does_not_press_the_others_together() -> None:
    n = 20
    base = Band(list(range(1, n + 1)), [1 / e for e in range(1, n + 1)], [0.0] * n, [])
    wild = Band(base.epochs, [10.0**e for e in base.epochs], [0.0] * n, [])
    shown = visible_range([base, wild], base)
    assert shown is not None
    assert shown[1] < 3


def test_a_method_that_was_better_before_it_over_trained_is_not_cut() -> None:
    epochs, error = [10, 20, 30, 40], [0.5] * 4
    base = Band(epochs, [28.4, 28.3, 28.1, 27.7], error, [])
    ema = Band(epochs, [33.0, 31.0, 28.4, 27.9], error, [])
    assert visible_range([base, ema, ema], base) is None


def test_methods_look_different_and_the_same_in_all_tasks() -> None:
    methods = {"plain": 0.0} | {f"method {i}": 0.0 for i in range(20)}
    tasks = [make_task("a", methods), make_task("b", dict(reversed(methods.items())))]
    looks = page_styles(tasks)
    assert looks["plain"].colour == 0
    assert len({(look.colour, look.dash) for look in looks.values()}) == 21


def test_every_colour_stands_out_from_the_background() -> None:
    style = (files("switch_ema.bench.report") / "style.css").read_text(encoding="utf-8")
    found = re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6})", style)
    light, dark = dict(found[: len(found) // 2]), dict(found[len(found) // 2 :])
    assert light.keys() == dark.keys()
    text = ("ink", "muted", "link", "good", "bad", "open")
    assert [light[f"method-{i}"] for i in range(COLOURS)] == list(style_colours)
    for scheme in (light, dark):
        for name in text:
            assert contrast(scheme[name], scheme["paper"]) >= 4.5, name
        for index in range(COLOURS):
            colour = scheme[f"method-{index}"]
            assert contrast(colour, scheme["paper"]) >= 3, index


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of WCAG 2."""
    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [
        p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts
    ]
    return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
