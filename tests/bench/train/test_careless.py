"""The loop is fair to tasks that leave random numbers, mode and file to chance."""

import pytest
import torch

from switch_ema.bench.compare import run_comparison
from switch_ema.bench.errors import UsageError
from switch_ema.bench.execute.options import RunOptions
from switch_ema.bench.plan.cells import make_plan
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.results.folder import open_run
from switch_ema.bench.train.context import RunContext
from switch_ema.bench.train.loop import train_cell
from tests.bench.conftest import TINY_TASK

CARELESS = (
    TINY_TASK
    + """

from torch.utils.data import DataLoader, TensorDataset


class Draws(Tiny):
    def __init__(self, seed):
        super().__init__(seed)
        self.x = torch.randn(32, 2)

    def evaluate(self, model):
        return {"error": self.x.sum().item(), "slope": torch.rand(()).item()}


class Returns(Tiny):
    def evaluate(self, model):
        measured = super().evaluate(model)
        model.train()
        return measured


class Shuffles(Tiny):
    def train_loader(self, epoch):
        return DataLoader(TensorDataset(self.x, self.y), 8, shuffle=True)

    def model(self):
        return nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 1))
"""
)


@pytest.fixture
def careless(tmp_path):
    """Values of a task that relies on the loop for its random numbers or mode."""

    def values(name, methods):
        path = tmp_path / "careless.py"
        path.write_text(CARELESS)
        tasks = (f"{path}:{name}",)
        config = CompareConfig(tasks=tasks, methods=methods, seeds=1)
        context = RunContext(tmp_path / "-".join((name, *methods)), "cpu")
        found = {}
        for cell in make_plan(config):
            torch.rand(len(found) + 1)  # what a process did before is not the cell's
            found |= train_cell(cell, context).values
        return found

    return values


def test_data_drawn_in_the_constructor_is_the_same_for_every_method(careless):
    values = careless("Draws", ("plain", "switch-ema", "lookahead"))
    errors = [method["error"] for method in values.values()]
    assert errors[0] == errors[1] == errors[2]


def test_random_numbers_in_evaluate_do_not_depend_on_the_methods(careless):
    first = careless("Draws", ("plain", "ema", "switch-ema"))
    second = careless("Draws", ("ema", "plain", "switch-ema"))
    assert first == second
    assert first["plain"]["slope"] == first["ema"]["slope"]  # the same for all
    epochs = [value for (value,) in first["plain"]["slope"]]
    assert len(set(epochs)) == len(epochs)  # but not for all epochs


def test_every_method_is_evaluated_in_evaluation_mode(careless, tiny, tmp_path):
    methods = ("plain", "ema", "swa")
    config = CompareConfig(tasks=(tiny,), methods=methods, seeds=1)
    expected = train_cell(make_plan(config)[0], RunContext(tmp_path, "cpu")).values
    assert careless("Returns", methods) == expected


def test_the_control_differs_where_torch_alone_shuffles(careless):
    values = careless("Shuffles", ("plain", "plain-again", "switch-ema:switch_start=9"))
    assert values["plain"] != values["plain-again"]


EDITS_ITSELF = (
    TINY_TASK
    + """

class Edited(Tiny):
    def evaluate(self, model):
        with open(__file__, "a") as file:
            file.write("# edited\\n")
        return super().evaluate(model)
"""
)


def test_a_file_that_is_edited_during_a_run_stops_it(tmp_path):
    path = tmp_path / "edited.py"
    path.write_text(EDITS_ITSELF)
    tasks = (f"{path}:Edited",)
    config = CompareConfig(tasks=tasks, methods=("plain",), seeds=2)
    options = RunOptions(out=tmp_path, name="run", executor="inline", device="cpu")
    stopped = run_comparison(config, options).error
    assert isinstance(stopped, UsageError)
    assert "edited during the run" in str(stopped)
    _, results = open_run(tmp_path / "run")
    statuses = [results.statuses()[cell.id] for cell in make_plan(config)]
    assert statuses == ["done", "failed"]
