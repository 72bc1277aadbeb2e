"""Landscapes of losses whose shape is known."""

import json
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from switch_ema.analysis.landscape.directions import parameters_of, random_directions
from switch_ema.analysis.landscape.surface import (
    LandscapeLine,
    LandscapeSurface,
    Notes,
    landscape_1d,
    landscape_2d,
    steps_around,
)
from switch_ema.analysis.probes import Probe, classification

NOTES = Notes(direction="d", seed=3, data="x", explained=(0.75, 0.25))


class Bowl(nn.Module):
    """The loss ``(a^2 + 4 b^2) / 2``, and nothing to feed in."""

    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.zeros(1, 1, dtype=torch.float64))
        self.b = nn.Parameter(torch.zeros(1, dtype=torch.float64))


def bowl_loss(model, batch):
    return {"loss": ((model.a**2).sum() + 4 * (model.b**2).sum()) / 2}


def point(a, b):
    return {
        "a": torch.tensor([[a]], dtype=torch.float64),
        "b": torch.tensor([b], dtype=torch.float64),
    }


BOWL = [Probe(bowl_loss, [None], weight=lambda batch: 1.0)]


@pytest.mark.parametrize("vectorise", [True, False])
def test_a_quadratic_is_an_exact_parabola_from_each_centre(vectorise):
    weights = {"plain": point(1.0, 0.0), "EMA": point(0.0, -0.5)}
    line = landscape_1d(Bowl(), weights, point(1.0, 2.0), BOWL, vectorise=vectorise)
    t = line.steps
    assert (t.size, t[0], t[-1]) == (41, -1, 1)
    plain = ((1 + t) ** 2 + 4 * (2 * t) ** 2) / 2
    ema = (t**2 + 4 * (2 * t - 0.5) ** 2) / 2
    np.testing.assert_allclose(line.values["loss"], [plain, ema], rtol=1e-12)
    assert line.labels == ("plain", "EMA")
    assert line.gaps == {"plain": 0, "EMA": 0}


@pytest.mark.parametrize("vectorise", [True, False])
def test_a_quadratic_is_an_exact_paraboloid_with_x_across(vectorise):
    surface = landscape_2d(
        Bowl(),
        point(1.0, 0.0),
        (point(1.0, 0.0), point(0.5, 1.0)),
        BOWL,
        x=[-2, -1, 0, 1],
        y=[-1, 0, 3],
        paths={"EMA": [point(3.0, 0.0), point(1.5, 1.0)]},
        label="plain",
        vectorise=vectorise,
    )
    x, y = np.meshgrid([-2, -1, 0, 1], [-1, 0, 3])
    expected = ((1 + x + 0.5 * y) ** 2 + 4 * y**2) / 2
    np.testing.assert_allclose(surface.values["loss"], expected, rtol=1e-12)
    np.testing.assert_allclose(surface.paths["EMA"], [[2, 0], [0, 1]], atol=1e-12)
    assert surface.shares == {"EMA": pytest.approx(1)}
    assert surface.gaps == 0


def with_gaps(model, batch):
    loss = bowl_loss(model, batch)["loss"]
    return {"loss": loss / (model.a.sum() >= 0), "depth": -loss}


def test_gaps_are_counted_and_empty_in_every_measurement():
    probes = [Probe(with_gaps, [None], weight=lambda batch: 1.0)]
    weights = {"plain": point(0.25, 0.0), "EMA": point(2.0, 0.0)}
    line = landscape_1d(
        Bowl(), weights, point(1.0, 0.0), probes, steps=[-1, -0.5, 0, 1]
    )
    assert line.gaps == {"plain": 2, "EMA": 0}
    assert np.isnan(line.values["depth"][0]).tolist() == [True, True, False, False]
    directions = point(1.0, 0.0), point(0.0, 1.0)
    surface = landscape_2d(Bowl(), point(0.0, 0.0), directions, probes)
    assert surface.gaps == 12 * 25


def test_results_survive_json():
    values = np.array([[1.0, np.nan], [0.5, 2.0]])
    line = LandscapeLine(np.array([0.0, 1.0]), ("a", "b"), {"loss": values}, NOTES)
    again = LandscapeLine.from_dict(json.loads(json.dumps(line.to_dict())))
    np.testing.assert_array_equal(again.values["loss"], values)
    assert (again.labels, again.notes, again.gaps) == (line.labels, NOTES, line.gaps)
    path = {"a": np.array([[0.0, 1.0], [np.nan, np.nan]])}
    steps = np.array([0.0, 1.0])
    surface = LandscapeSurface(
        steps, 2 * steps, {"loss": values}, path, {"a": np.nan}, "EMA", NOTES
    )
    text = json.dumps(surface.to_dict(), allow_nan=False)
    back = LandscapeSurface.from_dict(json.loads(text))
    assert back.to_dict() == surface.to_dict()
    np.testing.assert_array_equal(back.paths["a"], path["a"])
    assert np.isnan(back.shares["a"])


def test_steps_show_all_points_and_the_centre():
    x, y = steps_around([[1.0, 5.0], [3.0, 5.0], [np.nan, 9.0]], 11, margin=0.1)
    np.testing.assert_allclose([x[0], x[-1], y[0], y[-1]], [-0.3, 3.3, -0.5, 5.5])
    assert (len(x), len(y)) == (11, 11)
    x, _ = steps_around(np.zeros((1, 2)), 3, margin=0.5)
    np.testing.assert_allclose(x, [-0.5, 0, 0.5])


@pytest.mark.parametrize("steps", [[0.0], [[0.0, 1.0]], [1.0, 0.0], [0.0, np.nan]])
def test_bad_steps_are_refused(steps):
    with pytest.raises(ValueError, match="at least 2 increasing numbers"):
        landscape_1d(Bowl(), {"a": point(0.0, 0.0)}, point(1.0, 0.0), BOWL, steps=steps)


def test_no_weights_are_refused():
    with pytest.raises(ValueError, match="at least one state dict"):
        landscape_1d(Bowl(), {}, point(1.0, 0.0), BOWL)


def test_landscapes_of_a_perceptron_are_the_same_in_both_ways():
    sizes = (64, 64, 64, 10)
    layers = [nn.Linear(a, b) for a, b in pairwise(sizes)]
    model = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
    batches = [(torch.randn(50, 64), torch.randint(10, (50,))) for _ in range(4)]
    weights = {"plain": model.state_dict()}
    directions = random_directions(parameters_of(model), 2, seed=0)
    probes = [Probe(classification, batches)]
    for measure, target in (
        (landscape_1d, (weights, directions[0])),
        (landscape_2d, (weights["plain"], directions)),
    ):
        fast = measure(model, *target, probes, vectorise=True)
        slow = measure(model, *target, probes, vectorise=False)
        for name, values in slow.values.items():
            np.testing.assert_allclose(fast.values[name], values, rtol=1e-5)
