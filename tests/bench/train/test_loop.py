"""The loop: fair, resumable bit for bit, and honest about divergence."""

import dataclasses
import math
from pathlib import Path

import pytest
import torch

from switch_ema.bench.plan.cells import Cell, make_plan
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.task import Recipe
from switch_ema.bench.train import loop
from switch_ema.bench.train.checkpoints import checkpoint_path
from switch_ema.bench.train.context import RunContext
from switch_ema.bench.train.loop import Training, train_cell


def run(cell, folder):
    return train_cell(cell, RunContext(folder, "cpu"))


def cells_of(config):
    return {cell.methods: cell for cell in make_plan(config) if cell.seeds == (0,)}


def test_passive_methods_share_one_training_and_active_ones_train_alone(config):
    groups = [cell.methods for cell in make_plan(config) if cell.seeds == (0,)]
    assert groups == [
        ("plain", "ema:decay=0.9", "lawa"),
        ("lookahead:k=3",),
        ("switch-ema",),
    ]


def test_a_task_gets_the_processes_that_read_if_it_has_the_option(tiny, tmp_path):
    path = Path(tiny.partition(":")[0])
    reading = "self.workers = workers\n        super().__init__(seed)"
    text = path.read_text().replace('split="test"):', 'split="test", workers=1):')
    path.write_text(text.replace("super().__init__(seed)", reading))
    config = CompareConfig(tasks=(tiny,), methods=("plain",), seeds=1)
    [cell] = make_plan(config)
    for readers, found in ((None, 1), (0, 0), (4, 4)):
        context = RunContext(tmp_path, "cpu", readers=readers)
        assert Training(cell, context).task.workers == found
    path.write_text(path.read_text().replace("workers=1):", "others=1):"))
    path.write_text(path.read_text().replace("workers = workers", "others = others"))
    assert Training(cell, RunContext(tmp_path, "cpu", readers=4)).task.others == 1


def test_riding_along_changes_nothing(tiny, tmp_path):
    """Plain's numbers are the same whoever else rides on its training."""
    alone = CompareConfig(tasks=(tiny,), methods=("plain",), seeds=1)
    many = CompareConfig(
        tasks=(tiny,), methods=("plain", "ema", "ema:decay=0.9", "swa", "lawa"), seeds=1
    )
    first, second = (
        run(make_plan(config)[0], tmp_path / str(i))
        for i, config in enumerate((alone, many))
    )
    assert first.values["plain"] == second.values["plain"]
    assert second.values["ema:decay=0.9"] != second.values["plain"]


def test_an_active_method_that_does_nothing_equals_plain(tiny, tmp_path):
    """Same seed: same weights, order and dropout, also in a training of its own."""
    methods = ("plain", "switch-ema:switch_start=99", "plain-again")
    config = CompareConfig(tasks=(tiny,), methods=methods, seeds=1)
    plain, idle, again = (run(cell, tmp_path) for cell in make_plan(config))
    live = idle.values["switch-ema:switch_start=99"]
    assert live != plain.values["plain"]  # that is its average
    state = [
        torch.load(checkpoint_path(tmp_path, cell), weights_only=True)["model"]
        for cell in make_plan(config)
    ]
    for name, tensor in state[0].items():
        assert torch.equal(tensor, state[1][name])
        assert not torch.equal(tensor, state[2][name])  # another data order
    assert again.values["plain-again"] != plain.values["plain"]


RECIPES = {
    "constant": {},
    "cosine, warm-up, clipped": {
        "schedule": "cosine",
        "warmup_epochs": 0.5,
        "clip": 0.1,
    },
    "accumulated": {"accumulate": 3},
    "bfloat16": {"precision": "bf16"},
    "sam": {"optimizer": "sam:lr=0.05"},
    "schedule-free": {"optimizer": "schedulefree-adamw"},
}


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("options", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("moment", ["in an epoch", "before saving", "after saving"])
def test_killed_and_resumed_equals_uninterrupted(
    config, tmp_path, monkeypatch, options, moment
):
    for cell in cells_of(dataclasses.replace(config, **options)).values():
        whole = run(cell, tmp_path / "whole")
        kills = 0
        original = {
            "in an epoch": (loop, "take_step"),
            "before saving": (loop, "save_checkpoint"),
            "after saving": (loop, "save_checkpoint"),
        }[moment]
        function = getattr(*original)

        def dies(*arguments, function=function):
            nonlocal kills
            kills += 1
            if moment != "before saving" or kills != 2:
                result = function(*arguments)
            if kills == (6 if moment == "in an epoch" else 2):
                raise Killed
            return result

        monkeypatch.setattr(*original, dies)
        with pytest.raises(Killed):
            run(cell, tmp_path / "parts")
        monkeypatch.undo()
        resumed = run(cell, tmp_path / "parts")
        assert resumed.values == whole.values
        weights = [
            torch.load(checkpoint_path(tmp_path / name, cell), weights_only=True)
            for name in ("whole", "parts")
        ]
        for name, tensor in weights[0]["model"].items():
            assert torch.equal(tensor, weights[1]["model"][name])


def test_a_diverging_cell_is_marked_and_filled(tiny, tmp_path):
    config = CompareConfig(tasks=(f"{tiny}:diverge=True",), methods=("plain",), seeds=1)
    result = run(make_plan(config)[0], tmp_path)
    assert (result.status, result.message) == (
        "diverged",
        "the training loss is not finite",
    )
    assert len(result.values["plain"]["error"]) == 3
    assert all(math.isnan(value) for (value,) in result.values["plain"]["error"])


def test_accumulated_batches_make_one_step(tiny, tmp_path):
    """Two halves of a batch give the gradient of the whole."""
    recipe = Recipe(epochs=1, accumulate=4)
    cell = Cell(f"{tiny}", None, recipe, ("ema",), (0,))
    training = loop.Training(cell, RunContext(tmp_path, "cpu"))
    training.run()
    assert training.averagers["ema"].steps == 1
    assert training.steps_per_epoch == 1


def test_tensorboard_files_are_written_on_request(tiny, tmp_path):
    config = CompareConfig(tasks=(tiny,), methods=("plain",), seeds=1)
    context = RunContext(tmp_path, "cpu", trackers=("tensorboard",))
    train_cell(make_plan(config)[0], context)
    assert list((tmp_path / "trackers").glob("**/events*"))


def test_ids_change_with_everything_that_counts(config):
    base = make_plan(config)[0]
    others = [
        dataclasses.replace(base, seeds=(5,)),
        dataclasses.replace(base, methods=("plain",)),
        dataclasses.replace(base, split="validation"),
        dataclasses.replace(base, recipe=dataclasses.replace(base.recipe, clip=1.0)),
        dataclasses.replace(base, optimizer="sgd"),
    ]
    assert len({cell.id for cell in [base, *others]}) == 6


@pytest.mark.parametrize("size", [0, 100, -200])
def test_a_damaged_checkpoint_is_trained_anew(tiny, tmp_path, size):
    config = CompareConfig(tasks=(tiny,), methods=("plain", "ema"), seeds=1)
    [cell] = make_plan(config)
    whole = run(cell, tmp_path)
    path = checkpoint_path(tmp_path, cell)
    path.write_bytes(path.read_bytes()[:size])
    assert run(cell, tmp_path).values == whole.values
    assert torch.load(path, weights_only=True)["epoch"] == 3
