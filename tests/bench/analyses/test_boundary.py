"""From a task to the boundaries of its methods."""

import math
import tempfile
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from switch_ema.bench.analyses.boundary import compare_boundaries, probabilities_of
from switch_ema.bench.compare import Watcher
from switch_ema.bench.errors import UsageError
from switch_ema.bench.plan.cells import make_plan
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.report.boundaries import TABLE_HEADER, table_rows
from switch_ema.bench.train.context import RunContext
from switch_ema.bench.train.loop import train_cell
from switch_ema.zoo.models import Stacked, mlp

TASK = "moons:noise=0.2,lr=0.1,momentum=0.9"
METHODS = ("switch-ema", "plain", "ema")
SMALL = {"seeds": 3, "epochs": 4, "grid_size": 41}


@pytest.fixture(scope="module")
def found():
    return compare_boundaries(TASK, METHODS, **SMALL)


def test_accuracy_is_that_of_the_training_loop(found, tmp_path):
    """So the weights are each method's own, and the data are the right ones."""
    config = CompareConfig(tasks=(TASK,), methods=METHODS, seeds=3, epochs=4)
    expected = {}
    for cell in make_plan(config):
        expected |= train_cell(cell, RunContext(tmp_path, "cpu")).values
    for one in found.methods:
        last = expected[one.method]["accuracy"][-1]
        assert one.accuracy == pytest.approx(last)
    assert len({tuple(one.probabilities[0]) for one in found.methods}) == 3


def test_methods_keep_their_order_and_seeds_have_boundaries_of_their_own(found):
    assert [one.method for one in found.methods] == list(METHODS)
    assert found.seeds == (0, 1, 2)
    assert found.x.shape == (3, 50, 2) and found.x_test.shape == (3, 500, 2)
    assert len(found.grid.x) == 41
    for one in found.methods:
        assert len(set(one.values("length"))) == 3


def test_a_seed_is_the_same_in_another_company(found):
    alone = compare_boundaries(TASK, ["plain"], **{**SMALL, "seeds": 1}, first_seed=1)
    plain = found.methods[1]
    np.testing.assert_allclose(
        alone.methods[0].probabilities[0], plain.probabilities[1], atol=1e-5
    )


def test_the_network_is_surer_far_from_its_boundary(found):
    ema = found.methods[2]
    p, points = ema.probabilities[0], found.x_test[0]
    places = np.concatenate(ema.boundaries[0].lines)
    nearest = np.linalg.norm(points[:, None] - places[None], axis=2).min(1)
    sure = np.abs(p - 0.5)
    assert sure[nearest > 0.5].mean() > 2 * sure[nearest < 0.1].mean()


class Telling(Watcher):
    """Calls a function after every epoch."""

    def __init__(self, on_epoch):
        self.on_epoch = on_epoch

    @contextmanager
    def training(self, cells, done):
        yield self.on_epoch


def test_a_watcher_is_told_every_epoch_of_all_trainings():
    told = []
    watcher = Telling(lambda cell, epoch, _: told.append((cell.methods, epoch)))
    compare_boundaries("circles", **SMALL, watcher=watcher)
    groups = (("plain", "ema"), ("switch-ema",))
    assert told == [(group, epoch) for group in groups for epoch in range(1, 5)]


@pytest.mark.parametrize(("seconds", "first"), [(0.0, 3), (60.0, 1)])
def test_a_run_that_was_stopped_goes_on_and_gives_the_same(
    tmp_path, monkeypatch, seconds, first
):
    """Stopped during the second training: the first is read, not trained again.

    The second goes on after its last checkpoint, if it has one.
    """
    monkeypatch.setattr("switch_ema.bench.analyses.boundary._SAVES_EVERY", seconds)
    whole = compare_boundaries("circles", **SMALL)
    told = []

    def interrupt(cell, epoch, latest):
        told.append(cell.methods)
        if len(told) == 6:
            raise KeyboardInterrupt

    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        compare_boundaries(
            "circles", **SMALL, folder=folder, watcher=Telling(interrupt)
        )
    told.clear()
    watcher = Telling(lambda cell, epoch, _: told.append((cell.methods, epoch)))
    again = compare_boundaries("circles", **SMALL, folder=folder, watcher=watcher)
    assert told == [(("switch-ema",), epoch) for epoch in range(first, 5)]
    assert table_rows(again) == table_rows(whole)
    for one, other in zip(again.methods, whole.methods, strict=True):
        np.testing.assert_array_equal(one.probabilities, other.probabilities)
    monkeypatch.setattr("switch_ema.bench.train.loop.take_step", None)  # not needed
    assert table_rows(compare_boundaries("circles", **SMALL, folder=folder)) == (
        table_rows(whole)
    )


def test_an_interrupt_leaves_no_files(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def interrupt(cell, epoch, latest):
        assert list(tmp_path.iterdir())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare_boundaries("circles", **SMALL, watcher=Telling(interrupt))
    assert not list(tmp_path.iterdir())


def test_a_training_that_diverges_is_told_and_has_no_numbers():
    found = compare_boundaries("circles", ["plain"], **SMALL, optimizer="sgd:lr=1e30")
    assert "diverged, the training loss is not finite" in found.problems[0]
    for measure in ("accuracy", "length", "width"):
        assert np.isnan(found.methods[0].values(measure)).all()
    assert table_rows(found)[0][2:5] == ("-", "-", "0")


def test_table(found):
    rows = table_rows(found, ["accuracy", "width"])
    assert all(len(row) == len(TABLE_HEADER) for row in rows)
    assert [row[:2] for row in rows] == [
        (name, method) for name in ("accuracy", "width") for method in METHODS
    ]
    first, second = rows[:2]
    assert first[4:] == ("3", "baseline", "", "")
    accuracy = [one.accuracy for one in found.methods]
    assert float(first[2]) == pytest.approx(accuracy[0].mean(), abs=0.005)
    difference = (accuracy[1] - accuracy[0]).mean()
    assert float(second[5]) == pytest.approx(difference, abs=0.005)
    assert " to " in second[6] and second[7] == "3"


def test_probabilities_are_the_softmax_also_in_pieces():
    networks = [mlp(2, 8, 2) for _ in range(3)]
    points = torch.randn(10_000, 2)
    found = probabilities_of(Stacked(networks), points)
    for own, network in zip(found, networks, strict=True):
        expected = network(points).softmax(1)[:, 1].detach()
        np.testing.assert_allclose(own, expected, atol=1e-6)


@pytest.mark.parametrize("task", ["digits", "noisy-digits", "lm"])
def test_a_task_that_is_not_in_the_plane_is_refused(task):
    with pytest.raises(UsageError, match=f"which {task} is not; choose circles or"):
        compare_boundaries(task)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"task": "squares"}, "unknown task"),
        ({"task": "moons:colour=1"}, "no option 'colour'"),
        ({"task": "moons:lr=-1"}, "lr must be in"),
        ({"methods": ["ema", "ema"]}, "once each"),
        ({"methods": ["magic"]}, "unknown method 'magic'"),
        ({"seeds": 0}, "seeds must be at least 1"),
        ({"grid_size": 3}, "grid_size must be at least 10"),
        ({"epochs": 0}, "epochs must be at least 1"),
    ],
)
def test_bad_input_is_one_sentence(given, message):
    with pytest.raises(UsageError, match=message):
        compare_boundaries(**given)


def test_one_seed_has_no_interval():
    found = compare_boundaries("circles", ["plain"], **{**SMALL, "seeds": 1})
    assert math.isfinite(found.methods[0].accuracy[0])
    assert table_rows(found)[0][3:5] == ("-", "1")
