"""Several workers on this machine: the numbers of one process, whoever is killed."""

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from switch_ema.bench.compare import run_comparison
from switch_ema.bench.errors import UsageError
from switch_ema.bench.execute import local_workers
from switch_ema.bench.execute.cells import train_cells
from switch_ema.bench.execute.local import train_or_explain
from switch_ema.bench.execute.options import RunOptions
from switch_ema.bench.plan.cells import make_plan
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.train.checkpoints import checkpoint_path
from switch_ema.bench.train.context import RunContext

# Tasks for two workers; the last batch of each epoch has a single example.
DIVIDED = """
import os, signal, time
from pathlib import Path
from switch_ema.bench.task import SelfTeachingTask

class Divided(Tiny):
    def __init__(self, seed, **options):
        super().__init__(seed, **options)
        self.x, self.y = self.x[:25], self.y[:25]

    def model(self):
        return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))


class Killed(Divided):
    def train_loader(self, epoch):
        here = Path(__file__).parent
        with (here / f"epochs of {os.environ.get('RANK')}").open("a") as file:
            file.write(str(epoch))
        if os.environ.get("RANK") == "1" and epoch == 1:
            if not (here / "killed").exists():
                (here / "killed").touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return super().train_loader(epoch)


class Stopped(Divided):
    # In its second epoch, SIGTERM reaches the parent, which passes it on to rank 0.
    def train_loader(self, epoch):
        self.begun = epoch
        return super().train_loader(epoch)

    def loss(self, model, batch):
        parent = Path(__file__).with_name("parent")
        if self.begun == 1 and os.environ.get("RANK") == "0" and parent.exists():
            os.kill(int(parent.read_text()), signal.SIGTERM)
            parent.unlink()
            held = signal.getsignal(signal.SIGTERM).__self__
            while not held.are_waiting:
                time.sleep(0.01)
        return super().loss(model, batch)


class Normalised(Divided):
    def model(self):
        return nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


class Contrasted(Divided):
    def loss(self, model, batch):
        outputs = model(batch[0])
        return (outputs @ outputs.T).logsumexp(1).mean()


class Small(Divided):
    def train_loader(self, epoch):
        return Batches((self.x, self.y), 1, self.seed, epoch=epoch)


class Listed(Divided):
    def train_loader(self, epoch):
        return [([1, 2], "text")]


class Broken(Divided):
    def loss(self, model, batch):
        if os.environ.get("RANK") == "1":
            raise KeyError("lost key")
        return super().loss(model, batch)


class Dying(Divided):
    def model(self):
        os._exit(3)


class Whole(Divided):
    undivided = "its loss needs the whole batch"


class Taught(SelfTeachingTask, Divided):
    pass
"""


@pytest.fixture
def file(tiny):
    """The user's file, with tasks for several workers."""
    path = Path(tiny.partition(":")[0])
    path.write_text(path.read_text() + DIVIDED)
    return path


def cells_of(file, name, *methods, **options):
    methods = methods or ("plain",)
    spelled = f"{file}:{name}"
    return make_plan(
        CompareConfig(tasks=(spelled,), methods=methods, seeds=1, **options)
    )


def train(cell, folder, workers=2):
    told = []
    context = RunContext(folder, "cpu", workers=workers)
    result = train_or_explain(cell, context, lambda *now: told.append(now))
    return result, told


def close(values, others):
    flat = [
        (value, other)
        for method in values
        for metric in values[method]
        for pair in zip(values[method][metric], others[method][metric], strict=True)
        for value, other in zip(*pair, strict=True)
    ]
    return flat and all(a == pytest.approx(b, abs=1e-5) for a, b in flat)


def test_two_workers_train_as_one_process_also_after_one_was_killed(file, tmp_path):
    cell = cells_of(file, "Killed", "switch-ema", clip=1.0, accumulate=2)[0]
    one, _ = train(cell, tmp_path / "one", workers=1)
    two, told = train(cell, tmp_path / "two")
    assert (tmp_path / "killed").exists()
    assert one.status == two.status == "done"
    assert close(one.values, two.values) and one.values != {}
    assert [epoch for epoch, _ in told] == [1, 2, 3]
    # The finished epoch was not trained again; each attempt asks for its length (0).
    assert (tmp_path / "epochs of 0").read_text() in ("001012", "00012")
    assert two.trained["Workers"] == (
        "2, which took 4 each of the 8 examples of each batch (DDP on gloo)"
    )
    assert "Workers" not in one.trained


def test_sigterm_saves_the_state_within_an_epoch(file, tmp_path):
    cell = cells_of(file, "Stopped", "switch-ema")[0]
    one, _ = train(cell, tmp_path / "one", workers=1)
    (tmp_path / "parent").write_text(str(os.getpid()))
    with pytest.raises(KeyboardInterrupt):
        train(cell, tmp_path / "two")
    path = checkpoint_path(tmp_path / "two", cell)
    state = torch.load(path, weights_only=True)
    assert (state["epoch"], state["position"]["batches"]) == (1, 1)
    two, told = train(cell, tmp_path / "two")
    assert [epoch for epoch, _ in told] == [2, 3]
    assert close(one.values, two.values)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Normalised", "has 1 examples, fewer than the 2 workers, so batch norm"),
        ("Contrasted", r"its loss of 4 examples is .*, and the mean over two parts"),
        ("Small", "a batch of .* has 1 examples, fewer than the 2 workers"),
        ("Listed", "cannot be divided among workers: they must be tensors"),
        ("Broken", r"tiny\.py, line \d+: KeyError: 'lost key'"),
    ],
)
def test_what_goes_wrong_in_a_worker_is_one_sentence(file, tmp_path, name, message):
    result, _ = train(cells_of(file, name)[0], tmp_path)
    assert result.status == "failed"
    assert "\n" not in result.message
    assert re.search(message, result.message)


def test_workers_that_always_die_are_given_up(file, tmp_path, monkeypatch):
    monkeypatch.setattr(local_workers, "RETRIES", 0)
    result, _ = train(cells_of(file, "Dying")[0], tmp_path)
    assert result.status == "failed"
    assert result.message == "one of its 2 workers died, 1 time"


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("Whole", "because its loss needs the whole batch"),
        ("moons", "because it trains all seeds as one stacked model"),
        ("Taught", "because it may keep targets of a worker's own examples"),
    ],
)
def test_tasks_that_cannot_be_divided_are_refused(file, tmp_path, task, message):
    spelled = task if task == "moons" else f"{file}:{task}"
    cells = make_plan(CompareConfig(tasks=(spelled,), methods=("plain",), seeds=1))
    context = RunContext(tmp_path, "cpu", workers=2)
    with pytest.raises(UsageError, match=message):
        list(train_cells(cells, lambda _: context, 1, lambda *_: None))


def test_stacked_seeds_posthoc_and_scripts_are_refused(file, tmp_path):
    context = RunContext(tmp_path, "cpu", workers=2)
    cell = cells_of(file, "Divided")[0]
    refused = {
        "its seeds are trained stacked": replace(cell, seeds=(0, 1)),
        "posthoc-ema writes its averages to files": replace(
            cell, methods=("posthoc-ema",)
        ),
        "put torchrun into its command": replace(
            cell, task="script:python train.py --seed {seed}"
        ),
    }
    for message, one in refused.items():
        with pytest.raises(UsageError, match=message):
            list(train_cells([one], lambda _: context, 1, lambda *_: None))


def test_a_run_keeps_to_its_number_of_workers(file, tmp_path):
    config = CompareConfig(tasks=(f"{file}:Divided",), methods=("plain",), seeds=1)
    options = RunOptions(out=tmp_path, name="run", device="cpu", executor="inline")
    assert run_comparison(config, options).error is None
    with pytest.raises(UsageError, match="with workers_per_training 1, and res"):
        run_comparison(config, replace(options, workers_per_training=2))


def test_torchrun_has_chosen_the_workers(monkeypatch):
    assert RunOptions().workers_per_training == 1
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "RANK": 0, "WORLD_SIZE": 2}.items():
        monkeypatch.setenv(name, str(value))
    assert RunOptions().workers_per_training == 2
    for wrong in ({"workers_per_training": 4}, {"executor": "inline"}):
        with pytest.raises(UsageError, match="torchrun started 2 processes"):
            RunOptions(**wrong)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers_per_training": 0}, r"workers_per_training must be in \[1, 4096\]"),
        ({"readers": -1}, r"readers must be in \[0, 4096\], got -1"),
        ({"slurm": ("a=b",)}, "slurm needs --executor slurm"),
        ({"executor": "slurm", "slurm": ("gpu",)}, "options as name=value"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        RunOptions(**options)
