"""The drawings show the numbers they were given."""

import io

import matplotlib as mpl
import numpy as np
import pytest

from switch_ema.theory.checks import Grid, check_grid
from switch_ema.theory.figures import (
    Race,
    draw_bounds,
    draw_checks,
    draw_map,
    draw_races,
)
from switch_ema.theory.gallery import example_model, gallery
from switch_ema.theory.maps import switch_map
from switch_ema.theory.periodic import expected_losses
from switch_ema.theory.propositions import bounds
from switch_ema.theory.quadratic import SwitchSettings
from switch_ema.theory.simulation import constant_rates


def svg(figure):
    file = io.BytesIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def test_checks_has_a_line_and_error_bars_for_each_quantity():
    grid = Grid(
        rates=(0.3, 0.6), decays=(0.5,), curvatures=(1.0,), intervals=(4,), chains=20
    )
    rows = check_grid(grid)
    axes = draw_checks(rows).axes[0]
    quantities = list(dict.fromkeys(row.quantity for row in rows))
    assert len(axes.containers) == len(quantities)
    first = [row for row in rows if row.quantity == quantities[0]]
    assert axes.lines[0].get_ydata() == pytest.approx([row.exact for row in first])
    low, high = axes.containers[0][2][0].get_segments()[0][:, 1]
    assert (high - low) / 4 == pytest.approx(first[0].standard_error)


def test_races_show_the_ends():
    model, rates = example_model(), constant_rates(0.5, 120)
    start = np.ones(model.size)
    plain = expected_losses(model, SwitchSettings(decay=0.9), rates, start)
    switched = expected_losses(model, SwitchSettings(decay=0.9, every=10), rates, start)
    axes = draw_races([Race("T = 10", 10, plain, switched)]).axes[0]
    sgd, ema, shadow, live = (line.get_ydata()[-1] for line in axes.lines)
    assert sgd == plain.live[-1]
    assert ema == plain.shadow[-1]
    assert shadow == switched.shadow[-1]
    assert live == switched.live[-2]


def test_map_is_centred_on_no_difference_and_has_the_zero_contour():
    data = switch_map(decay=0.9, horizon=60, steepness=np.geomspace(0.01, 1.9, 12))
    against_ema, against_sgd = draw_map(data).axes[:2]
    for axes, other in ((against_ema, data.ema), (against_sgd, data.sgd)):
        mesh, contour = axes.collections[0], axes.collections[1]
        assert mesh.get_clim() == (-2, 2)
        expected = np.clip(np.log2(data.switch_ema / other[:, None]), -2, 2)
        assert np.allclose(mesh.get_array(), expected)
        assert contour.get_paths()[0].vertices.size


def test_bounds_panels():
    model, rates = example_model(), np.array([0.1, 0.5])
    found = [bounds(model, rate, 0.9, 10, np.ones(10)) for rate in rates]
    gains = {"1": (np.array([2.0, 5.0]), np.array([0.5, 1.2]))}
    left, right = draw_bounds(rates, found, gains).axes
    assert left.lines[0].get_ydata() == pytest.approx([b.errors[0] for b in found])
    assert left.lines[3].get_ydata() == pytest.approx([b.sgd for b in found])
    assert right.lines[0].get_ydata() == pytest.approx([0.5, 1.2])


def test_gallery_files_are_small_and_settings_stay_untouched():
    before = dict(mpl.rcParams)
    names = []
    for name, figure in gallery():
        names.append(name)
        assert len(svg(figure)) < 200_000, name
    assert dict(mpl.rcParams) == before
    assert names == ["theory-variance", "theory-time", "theory-map", "theory-bounds"]
