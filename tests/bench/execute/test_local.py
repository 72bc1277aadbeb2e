"""Workers on this machine: what may go wrong in them, and that they leave."""

import os
import signal
import subprocess
import sys
from contextlib import closing
from multiprocessing import get_context

import pytest
import torch

from switch_ema.bench.compare import run_comparison
from switch_ema.bench.execute.cells import train_cells
from switch_ema.bench.execute.local import Pool, how_it_died
from switch_ema.bench.execute.options import RunOptions
from switch_ema.bench.plan.cells import make_plan
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.results.store import Results
from switch_ema.bench.train.checkpoints import checkpoint_path
from switch_ema.bench.train.context import RunContext
from switch_ema.bench.train.loop import train_cell
from tests.bench.conftest import TINY_TASK
from tests.bench.execute.test_guard import is_alive, wait_for

TASKS = (
    TINY_TASK
    + """

import os, signal, sys, time
from pathlib import Path
from torch.utils.data import DataLoader, TensorDataset


class Data(TensorDataset):
    pass


class Loaded(Tiny):
    def train_loader(self, epoch):
        data = Data(self.x, self.y)
        return DataLoader(data, 8, shuffle=True, num_workers=1)


class Stays(Loaded):
    def loss(self, model, batch):
        note = Path(__file__).with_name(f"{os.getpid()}.pid")
        note.write_text("")
        time.sleep(600)


class Exits(Tiny):
    def model(self):
        sys.exit("enough")


class Unspeakable(Exception):
    def __str__(self):
        raise ValueError


class Mishaps(Tiny):
    # Each seed has a mishap of its own; the last one changes the folder.
    def __init__(self, seed, *, split="test"):
        super().__init__(seed, split=split)
        if seed == 0:
            os._exit(7)
        if seed == 1:
            os.kill(os.getpid(), 11)
        if seed == 2:
            raise Unspeakable
        if seed == 3:
            raise ValueError("line\\nand \\x1b[2J")
        os.chdir("/")


class Stopped(Tiny):
    # In its second epoch, SIGTERM reaches the command, and through it this process.
    def loss(self, model, batch):
        mark = Path(__file__).with_name("stopped")
        if self.begun == 1 and not mark.exists():
            mark.touch()
            os.kill(os.getppid(), signal.SIGTERM)
            held = signal.getsignal(signal.SIGTERM).__self__
            while not held.are_waiting:
                time.sleep(0.01)
        return super().loss(model, batch)

    def train_loader(self, epoch):
        self.begun = epoch
        return super().train_loader(epoch)


class Hangs(Tiny):
    def loss(self, model, batch):
        time.sleep(600)
"""
)


@pytest.fixture
def tasks(tmp_path):
    path = tmp_path / "tasks.py"
    path.write_text(TASKS)
    return path


def results_of(task, folder, jobs):
    config = CompareConfig(tasks=(task,), methods=("plain",), seeds=2)
    context = RunContext(folder, "cpu")
    found = train_cells(make_plan(config), lambda _: context, jobs, lambda *_: None)
    return [result for _, result in found]


def test_a_task_may_load_its_data_in_processes(tasks, tmp_path):
    """Its own classes among them, which a spawned process could not import."""
    serial, parallel = (
        results_of(f"{tasks}:Loaded", tmp_path / str(jobs), jobs) for jobs in (1, 2)
    )
    assert [(r.status, r.message) for r in parallel] == [("done", "")] * 2
    numbers = [sorted(str(r.values) for r in results) for results in (serial, parallel)]
    assert numbers[0] == numbers[1]


def test_one_mishap_stops_one_training(tasks, tmp_path, monkeypatch):
    """Also with one job: exits, crashes, odd exceptions and a change of folders."""
    monkeypatch.chdir(tmp_path)
    config = CompareConfig(tasks=(f"{tasks}:Mishaps",), methods=("plain",), seeds=5)
    options = RunOptions(name="run", jobs=1, device="cpu")
    done = run_comparison(config, options)
    assert "4 of 5 trainings failed" in str(done.error)
    with closing(Results(tmp_path / "runs" / "run" / "results.sqlite")) as results:
        messages = [str(results.cell(cell)["message"]) for cell in make_plan(config)]
        statuses = list(results.statuses().values())
    assert sorted(statuses) == ["done"] + ["failed"] * 4
    assert messages[0] == "its process died twice, with exit code 7"
    assert messages[1].startswith("its process died twice, by signal 11")
    assert "Unspeakable: (its message cannot be shown: ValueError)" in messages[2]
    assert messages[3].endswith("ValueError: line") and messages[4] == ""


def test_a_training_that_hangs_is_given_up(tasks, tmp_path):
    config = CompareConfig(tasks=(f"{tasks}:Hangs",), methods=("plain",), seeds=1)
    context = RunContext(tmp_path, "cpu")
    [(_, result)] = train_cells(
        make_plan(config), lambda _: context, 1, lambda *_: None, timeout=3
    )
    assert result.status == "failed"
    assert result.message == "no epoch was finished within 3 s"


def test_sigterm_saves_the_state_within_an_epoch(tasks, tmp_path, monkeypatch):
    def stop(number, frame):
        raise KeyboardInterrupt(number)

    cells = make_plan(
        CompareConfig(tasks=(f"{tasks}:Stopped",), methods=("plain",), seeds=1)
    )
    context = RunContext(tmp_path, "cpu")
    before = signal.signal(signal.SIGTERM, stop)
    try:
        with pytest.raises(KeyboardInterrupt):
            list(train_cells(cells, lambda _: context, 1, lambda *_: None))
    finally:
        signal.signal(signal.SIGTERM, before)
    state = torch.load(checkpoint_path(tmp_path, cells[0]), weights_only=True)
    assert (state["epoch"], state["position"]["batches"]) == (1, 1)
    [(_, resumed)] = train_cells(cells, lambda _: context, 1, lambda *_: None)
    [whole] = [
        train_cell(cell, RunContext(tmp_path / "whole", "cpu")) for cell in cells
    ]
    assert resumed.values == whole.values


def test_a_worker_that_dies_idle_costs_nothing(tasks, tmp_path):
    config = CompareConfig(tasks=(f"{tasks}:Tiny",), methods=("plain",), seeds=2)
    with Pool([None]) as pool:
        for worker in pool._workers:
            worker.process.kill()
            worker.process.join()
        found = list(
            pool.run(
                make_plan(config),
                lambda _: RunContext(tmp_path, "cpu"),
                lambda *_: None,
            )
        )
    assert [result.status for _, result in found] == ["done"] * 2


def test_an_exit_in_a_task_is_told_with_its_line(tasks, tmp_path):
    results = results_of(f"{tasks}:Exits", tmp_path, jobs=1)
    line = TASKS[: TASKS.index("sys.exit")].count("\n") + 1
    expected = ("failed", f"{tasks}, line {line}: SystemExit: enough")
    assert [(r.status, r.message) for r in results] == [expected] * 2


@pytest.mark.parametrize(
    ("end", "argument", "told"),
    [
        (os._exit, 3, "with exit code 3"),
        (signal.raise_signal, 9, "by signal 9 (9: often out of memory)"),
    ],
)
def test_a_worker_that_died_tells_how(end, argument, told):
    process = get_context("fork").Process(target=end, args=(argument,))
    process.start()
    assert how_it_died(process) == told


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_workers_leave_with_their_parent(tasks, tmp_path, how):
    """Also those that have processes of their own."""
    command = [
        *(sys.executable, "-m", "switch_ema", "compare", f"{tasks}:Stays"),
        *(
            "--methods",
            "plain",
            "ema",
            "--seeds",
            "2",
            "--jobs",
            "2",
            "--device",
            "cpu",
        ),
        *("--out", str(tmp_path / "runs")),
    ]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, **quiet)

    def workers():
        return [int(path.stem) for path in tmp_path.glob("*.pid")]

    try:
        wait_for(lambda: len(workers()) == 2)
        process.send_signal(how)
        process.wait(timeout=600)
        wait_for(lambda: not any(map(is_alive, workers())))
    finally:
        for number in (process.pid, *workers()):
            if is_alive(number):
                os.kill(number, signal.SIGKILL)
        process.wait()
