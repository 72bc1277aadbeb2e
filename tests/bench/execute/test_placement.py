"""Trainings on GPUs, with a fake number of them, and the cores that they use."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from switch_ema.bench.errors import UsageError
from switch_ema.bench.execute import slurm
from switch_ema.bench.execute.cells import train_cells
from switch_ema.bench.execute.placement import (
    cores_of,
    default_jobs,
    found_gpus,
    place,
)
from switch_ema.bench.loaders import CORES, usable_cores
from switch_ema.bench.loading import load_task_class
from switch_ema.bench.plan.cells import make_plan
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.train.context import RunContext

SEEING = """
import os

class Seeing(Tiny):
    def __init__(self, seed, *, workers=0, **options):
        super().__init__(seed, **options)

    def evaluate(self, model):
        # What this process sees, as numbers: 2.03 are the GPUs 2 and 3.
        gpus = [int(one) for one in os.environ["CUDA_VISIBLE_DEVICES"].split(",")]
        value = sum(gpu / 100**i for i, gpu in enumerate(gpus))
        return {"error": value, "slope": float(os.environ["SWITCH_EMA_CORES"])}
"""


@pytest.fixture
def seeing(tiny):
    """A task that says which GPUs its process sees."""
    path = Path(tiny.partition(":")[0])
    path.write_text(path.read_text() + SEEING)
    return f"{path}:Seeing"


@pytest.fixture
def four_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_gpus_are_those_that_the_user_lets_us_see(monkeypatch, four_gpus):
    assert found_gpus(None) == ["0", "1", "2", "3"]
    assert found_gpus("cpu") == []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-7f")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert found_gpus("cuda") == ["5", "GPU-7f"]


def test_trainings_share_a_gpu_only_where_they_must():
    gpus = list("0123")
    assert place(gpus, jobs=4, workers=1) == ["0", "1", "2", "3"]
    assert place(gpus, jobs=2, workers=2) == ["0,1", "2,3"]
    assert place(gpus, jobs=2, workers=3) == ["0,1,2", "3,0,1"]
    assert [default_jobs(gpus, workers) for workers in (1, 2, 3)] == [4, 2, 1]
    with pytest.raises(UsageError, match=r"5 workers needs as many GPUs, .* has 4"):
        place(gpus, jobs=1, workers=5)


def test_each_training_sees_its_own_gpus_and_cores(seeing, tmp_path, four_gpus):
    methods = ("plain", "switch-ema", "lookahead:k=3")
    cells = make_plan(CompareConfig(tasks=(seeing,), methods=methods, seeds=1))
    context = RunContext(tmp_path)
    found = train_cells(cells, lambda _: context, 3, lambda *_: None)
    values = [result.values[cell.methods[0]] for cell, result in found]
    assert sorted(one["error"][-1] for one in values) == [[0.0], [1.0], [2.0]]
    assert {one["slope"][-1][0] for one in values} == {max(1, usable_cores() // 3)}


def test_slurm_asks_for_the_cores_of_threads_and_loaders(seeing, tmp_path, monkeypatch):
    task = f"{seeing}:workers=6"
    [cell] = make_plan(CompareConfig(tasks=(task,), methods=("plain",), seeds=1))
    context = RunContext(tmp_path, "cpu", threads=2)
    assert cores_of(cell, context) == 8
    assert cores_of(cell, replace(context, readers=3)) == 5
    asked = {}

    class Executor:
        def __init__(self, **options):
            pass

        def update_parameters(self, **options):
            asked.update(options)

        def submit(self, work):
            assert work.cores == 8
            raise OSError("no Slurm here")

    monkeypatch.setattr(slurm.submitit, "AutoExecutor", Executor)
    with pytest.raises(UsageError, match="no Slurm here"):
        list(slurm.train_on_slurm([cell], lambda _: context, 1, lambda *_: None))
    assert asked["cpus_per_task"] == 8


@pytest.mark.zoo
@pytest.mark.parametrize(
    ("task", "processes"),
    [
        ("classification", 0),
        ("classification:scale=paper", 16),
        ("classification:scale=paper,workers=3", 3),
        ("retinanet:scale=paper", 16),
        ("simclr:scale=paper,dataset=cifar100", 16),
        ("age:scale=paper", 16),
        ("digits", 0),
    ],
)
def test_tasks_say_how_many_processes_read_their_data(task, processes):
    task_class, spec = load_task_class(task)
    assert task_class.reading_processes(spec.options) == processes


def test_data_parallel_processes_divide_the_cores_of_a_machine(monkeypatch):
    monkeypatch.delenv(CORES, raising=False)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    whole = usable_cores()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert usable_cores() == max(1, whole // 2)
    monkeypatch.setenv(CORES, "7")
    assert usable_cores() == 7
