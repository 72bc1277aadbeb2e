"""What a task may add: fewer evaluations, trivial values, pictures, a common start."""

import io
import json
import math
from pathlib import Path

import pytest
import torch
from accelerate.utils import set_seed
from PIL import Image
from rich.console import Console

from switch_ema.bench.errors import UsageError
from switch_ema.bench.execute.options import RunOptions
from switch_ema.bench.loading import create_task
from switch_ema.bench.plan.cells import make_plan
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.results.folder import open_run
from switch_ema.bench.results.samples import load_samples
from switch_ema.bench.stacking.tasks import StackedTask
from switch_ema.bench.stats.summarize import summarize
from switch_ema.bench.train.context import RunContext
from switch_ema.bench.train.loop import Training, train_cell
from switch_ema.bench.train.task_checks import load_initial_weights
from switch_ema.commands.compare import Compare
from tests.bench.conftest import TINY_TASK

MORE = """
    def trivial(self):
        assert self.seed == 0, "asked with another seed than the first"
        return {"mean": {"error": 2.5}, "zero": {"error": 3.0, "slope": 0.0}}

    def initial_weights(self):
        return {"2.weight": torch.full((1, 4), 0.5)}, "half of one, from nowhere"

    def samples(self, model):
        assert not model.training and not torch.is_grad_enabled()
        noise = torch.rand(1, 1, 8, 8)
        shade = model[0].weight.mean().sigmoid().expand(20, 3, 8, 8)
        return {"noise": noise, "shade": shade}
"""


@pytest.fixture
def rich_task(tmp_path):
    """The spelling of a task that has all optional members."""
    path = tmp_path / "rich_task.py"
    path.write_text(TINY_TASK + MORE)
    return f"{path}:Tiny"


def compare(task, folder, **options):
    """Run a comparison; return its summary, what was printed and its page."""
    methods = ("plain", "ema:decay=0.9", "switch-ema")
    config = CompareConfig(tasks=(task,), methods=methods, seeds=2, **options)
    console = Console(file=io.StringIO(), width=120)
    run = RunOptions(out=folder, name="run", executor="inline", device="cpu")
    Compare(settings=config, run=run)(console)
    stored, results = open_run(folder / "run")
    try:
        [summary] = summarize(stored, results, "run").tasks
    finally:
        results.close()
    page = (folder / "run" / "report.html").read_text()
    return summary, console.file.getvalue(), page


def test_epochs_that_are_not_evaluated_have_no_value(tiny, tmp_path):
    every, third = (
        train_cell(
            make_plan(CompareConfig(tasks=(tiny,), epochs=7, seeds=1, **options))[0],
            RunContext(tmp_path / str(index), "cpu"),
        ).values["plain"]["error"]
        for index, options in enumerate([{}, {"evaluate_every": 3}])
    )
    for epoch in range(1, 8):
        [value] = third[epoch - 1]
        if epoch in (3, 6, 7):
            assert [value] == every[epoch - 1]  # evaluation changes no training
        else:
            assert math.isnan(value)


def test_curves_statistics_and_captions_know_the_epochs(tiny, tmp_path):
    summary, _, page = compare(tiny, tmp_path, epochs=5, evaluate_every=2)
    curve = summary.curves["error"]["plain"][0]
    assert [math.isfinite(value) for value in curve] == [False, True, False, True, True]
    assert all(result.last.n == 2 for result in summary.results["error"])
    reached = [r.speed_up.epochs for r in summary.results["error"] if r.speed_up]
    assert all(epochs in (None, 2, 3, 4, 4.5, 5) for epochs in reached)
    assert "after every 2 epochs and after the last" in page
    assert "every 2 epochs, and at the end" in page


def test_a_killed_training_keeps_its_rhythm(tiny, tmp_path):
    config = CompareConfig(tasks=(tiny,), epochs=5, evaluate_every=2, seeds=1)
    cell = make_plan(config)[0]
    whole = train_cell(cell, RunContext(tmp_path / "whole", "cpu"))

    class Killed(BaseException):
        pass

    def die(epoch, latest):
        if epoch == 3:
            raise Killed

    with pytest.raises(Killed):
        train_cell(cell, RunContext(tmp_path / "parts", "cpu"), die)
    resumed = train_cell(cell, RunContext(tmp_path / "parts", "cpu"))
    assert json.dumps(resumed.values) == json.dumps(whole.values)  # NaN equals NaN


def test_trivial_values_stand_beside_the_results(rich_task, tmp_path):
    summary, _, page = compare(rich_task, tmp_path)
    assert summary.trivial == {
        "mean": {"error": 2.5},
        "zero": {"error": 3.0, "slope": 0.0},
    }
    assert "without training: mean: error 2.5" in page
    assert "zero: error 3.0" in page


def test_every_method_begins_with_the_same_stated_weights(rich_task, tmp_path):
    config = CompareConfig(tasks=(rich_task,), methods=("plain", "switch-ema"), seeds=1)
    first, second = (
        Training(cell, RunContext(tmp_path, "cpu")) for cell in make_plan(config)
    )
    assert torch.equal(first.model[2].weight, torch.full((1, 4), 0.5))
    for one, other in zip(
        first.model.parameters(), second.model.parameters(), strict=True
    ):
        assert torch.equal(one, other)  # also those that initial_weights leaves out
    summary, text, page = compare(rich_task, tmp_path)
    assert summary.origin == "half of one, from nowhere"
    assert "Initial weights: half of one, from nowhere." in " ".join(text.split())
    assert "<dt>Initial weights</dt><dd>half of one, from nowhere</dd>" in page


def test_seeds_that_train_at_once_begin_as_they_would_alone(rich_task):
    tasks = [create_task(rich_task, (seed,)) for seed in (0, 1)]
    stacked = StackedTask(tasks)
    model = stacked.model()
    assert load_initial_weights(stacked, model) == "half of one, from nowhere"
    for index, task in enumerate(tasks):
        set_seed(task.seed)
        alone = task.model()
        load_initial_weights(task, alone)
        state = model.alone(index).state_dict()
        for name, tensor in alone.state_dict().items():
            assert torch.equal(tensor, state[name])


def test_pictures_of_each_method_with_the_same_random_numbers(rich_task, tmp_path):
    summary, _, page = compare(rich_task, tmp_path)
    made = {(one.method, one.caption): one for one in summary.samples}
    methods = ["plain", "ema:decay=0.9", "switch-ema"]
    assert list(made) == [
        (method, caption) for method in methods for caption in ("noise", "shade")
    ]
    assert len({made[method, "noise"].png for method in methods}) == 1
    assert len({made[method, "shade"].png for method in methods}) == 3
    # One picture of 8 pixels, enlarged 8 times; 20 pictures in four rows of five.
    sizes = [Image.open(io.BytesIO(one.png)).size for one in summary.samples[:2]]
    assert sizes == [(64, 64), (5 * 66 + 2, 4 * 66 + 2)]
    # What is the same for all methods is shown once.
    assert page.count('<img src="data:image/png;base64,') == 4
    assert len(list((tmp_path / "run" / "samples").glob("*/*.png"))) == 6


def test_pictures_that_were_deleted_are_left_out(rich_task, tmp_path):
    compare(rich_task, tmp_path)
    for path in (tmp_path / "run" / "samples").glob("*/plain*.png"):
        path.unlink()
    found = load_samples(tmp_path / "run", rich_task, ["plain", "switch-ema"])
    assert {one.method for one in found} == {"switch-ema"}


@pytest.mark.parametrize(
    ("member", "answer", "message"),
    [
        ("trivial", "3.0", r"Tiny.trivial must return a dict, got a float"),
        ("trivial", '{"loss": 1.0}', "may have values for error, slope, got 'loss'"),
        ("trivial", '{"error": "x"}', "must give one number for 'error', got a str"),
        ("initial_weights", "{}", "must return None, or a state dict and a text"),
        ("initial_weights", '({"w": torch.ones(1)}, "x")', "has 1 entries that .* w"),
        (
            "initial_weights",
            '({"2.weight": torch.ones(1)}, "x")',
            "does not fit: size mismatch for 2.weight",
        ),
        ("samples", "3", "must return pictures of shape N x C x H x W .* got a int"),
        ("samples", "torch.ones(2, 2, 4, 4)", r"got a tensor of shape \(2, 2, 4, 4\)"),
    ],
)
def test_wrong_answers_are_named(tiny, tmp_path, member, answer, message):
    path = Path(tiny.partition(":")[0])
    more = f"\n    def {member}(self, *model):\n        return {answer}\n"
    path.write_text(TINY_TASK + more)
    with pytest.raises(UsageError, match=message):
        compare(tiny, tmp_path)
