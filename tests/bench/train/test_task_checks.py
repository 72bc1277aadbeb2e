"""What a task's methods return: taken if it can be meant, else named in a sentence."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from switch_ema.bench.errors import UsageError
from switch_ema.bench.plan.cells import Cell
from switch_ema.bench.task import Metric, Recipe, Task
from switch_ema.bench.train import task_checks
from switch_ema.bench.train.context import RunContext
from switch_ema.bench.train.loop import train_cell
from tests.bench.conftest import TINY_TASK


class Measured(Task):
    metrics = (Metric(name="error", higher_is_better=False),)

    def __init__(self, value):
        super().__init__(0)
        self.value = value

    def evaluate(self, model):
        return self.value

    model = optimizer = train_loader = loss = None


@pytest.mark.parametrize(
    "value",
    [
        2,
        2.0,
        np.float32(2),
        torch.tensor(2.0),
        torch.tensor([2.0]),
        torch.tensor(2.0, requires_grad=True),
        [2.0],
        np.array([2.0]),
    ],
)
def test_what_is_one_number_is_taken(value):
    task = Measured({"error": value, "other": None})
    assert task_checks.measure(task, nn.Identity(), 1) == {"error": [2.0]}


@pytest.mark.parametrize(
    "value", [[1.0, 2.0], torch.tensor([1.0, 2.0]), [torch.tensor(1.0), 2]]
)
def test_stacked_seeds_have_one_number_each(value):
    task = Measured({"error": value})
    assert task_checks.measure(task, nn.Identity(), 2) == {"error": [1.0, 2.0]}


@pytest.mark.parametrize(
    ("value", "seeds", "message"),
    [
        (None, 1, "must return a dict of metrics, got None (is a return missing?)."),
        (0.5, 1, "must return a dict of metrics, got a float."),
        ({}, 1, "must measure 'error', got nothing."),
        ({"eror": 1, "nll": 2}, 1, "must measure 'error', got eror, nll."),
        (
            {"error": torch.zeros(3)},
            1,
            "must give one number for 'error', got a tensor of shape (3,).",
        ),
        ({"error": [1, 2]}, 1, "must give one number for 'error', got a list of 2."),
        ({"error": "low"}, 1, "must give one number for 'error', got a str."),
        (
            {"error": 1.0},
            2,
            "must give 2 numbers, one per seed, for 'error', got a float.",
        ),
    ],
)
def test_anything_else_names_evaluate_and_the_metric(value, seeds, message):
    with pytest.raises(UsageError) as caught:
        task_checks.measure(Measured(value), nn.Identity(), seeds)
    assert str(caught.value) == f"Measured.evaluate {message}"


def test_only_values_that_are_missing_in_the_end_are_named():
    nan = math.nan
    values = {
        "plain": {"error": [[nan, 1.0], [1.0, 1.0]]},
        "ema": {
            "error": [[1.0, 1.0], [1.0, math.inf]],
            "slope": [[1.0, 1.0], [nan, 1.0]],
        },
    }
    assert task_checks.name_missing(values, (3, 4)) == (
        "evaluate returned no finite number for error of ema with seed 4, "
        "slope of ema with seed 3"
    )
    assert task_checks.name_missing({"plain": values["plain"]}, (3, 4)) == ""


MEMBERS = {
    "def __init__(self, seed): self.diverge = False": (
        "__init__ must call super().__init__(seed)."
    ),
    "def model(self): ...": (
        "model must return a module, got None (is a return missing?)."
    ),
    "def optimizer(self, model): return [1]": (
        "optimizer must return a torch Optimizer, got a list of 1."
    ),
    "def train_loader(self, epoch): return iter([])": (
        "train_loader must return batches that have a len(), got a list_iterator."
    ),
    "def train_loader(self, epoch): return []": (
        "train_loader must return at least one batch, got none."
    ),
    "def loss(self, model, batch): return model(batch[0])": (
        "loss must return a scalar tensor, got a tensor of shape (8, 1)."
    ),
}


@pytest.mark.parametrize(("member", "message"), MEMBERS.items())
def test_errors_in_what_is_returned_name_the_method(tmp_path, member, message):
    path = tmp_path / "mine.py"
    path.write_text(f"{TINY_TASK}\n\nclass Mine(Tiny):\n    {member}\n")
    cell = Cell(f"{path}:Mine", None, Recipe(epochs=1), ("plain",), (0,))
    with pytest.raises(UsageError) as caught:
        train_cell(cell, RunContext(tmp_path, "cpu"))
    assert str(caught.value) == f"Mine.{message}"
