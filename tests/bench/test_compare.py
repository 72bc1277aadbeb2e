"""Whole comparisons: interrupted at many points, the table is the same."""

import contextlib
import dataclasses
import io
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from switch_ema.bench.errors import UsageError
from switch_ema.bench.execute.options import RunOptions
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.results.folder import locked, open_run
from switch_ema.bench.results.kept_weights import load_kept
from switch_ema.bench.results.store import Results
from switch_ema.bench.stats.summarize import summarize
from switch_ema.bench.train import checkpoints, loop
from switch_ema.commands.compare import Compare
from tests.bench.conftest import TINY_TASK


class Killed(BaseException):
    """The process ends here."""


def options(folder, **more):
    return RunOptions(out=folder, device="cpu", **{"executor": "inline", **more})


def run(config, folder, **more):
    console = Console(file=io.StringIO(), width=120)
    chosen = options(folder, **more)
    Compare(settings=config, run=chosen)(console)
    path = folder / (chosen.name or config.default_name) / "report.html"
    return path, console.file.getvalue()


def table(path):
    """All that the report says about methods, without costs."""
    config, results = open_run(path.parent)
    summary = summarize(config, results, "run")
    return [(task.curves, task.results, task.missing) for task in summary.tasks]


def test_a_comparison_writes_results_report_and_kept_checkpoints(config, tmp_path):
    path, text = run(config, tmp_path / "runs")
    assert path.name == "report.html" and path.stat().st_size > 10_000
    assert "Plan" in text and "switch-ema" in text
    kept = list((path.parent / "cells").glob("*.pt"))
    assert len(kept) == 3  # the first seed's
    assert (path.parent / "config.json").read_text() == config.to_json()
    (_, results, missing) = table(path)[0]
    assert missing == 0
    assert [r.method for r in results["error"]] == list(config.methods)
    assert all(r.last.n == 2 for r in results["error"])


def test_the_same_command_again_trains_nothing(config, tmp_path, monkeypatch):
    path, _ = run(config, tmp_path / "runs")
    before = table(path)

    def refuse(*arguments):
        raise AssertionError("something was trained again")

    monkeypatch.setattr(loop, "take_step", refuse)
    again, text = run(config, tmp_path / "runs")
    assert again == path and table(again) == before
    assert "6 of 6 trainings are already done" in text


POINTS = {
    "take_step": (loop, "take_step", range(3, 70, 13)),
    "checkpoint": (checkpoints, "save", range(1, 18, 4)),
    "store": (Results, "add", range(1, 7)),
}


@pytest.mark.parametrize("point", POINTS)
def test_killed_anywhere_the_table_is_the_same(config, tmp_path, monkeypatch, point):
    whole = table(run(config, tmp_path / "whole")[0])
    owner, name, moments = POINTS[point]
    function = getattr(owner, name)
    for moment in moments:
        folder, calls = tmp_path / f"killed-{moment}", 0
        for before in (True, False):  # killed just before it, and just after it

            def dies(*arguments, before=before, moment=moment):
                nonlocal calls
                calls += 1
                if calls == moment and before:
                    raise Killed
                result = function(*arguments)
                if calls == moment:
                    raise Killed
                return result

            calls = 0
            monkeypatch.setattr(owner, name, dies)
            with contextlib.suppress(Killed):
                run(config, folder)
            monkeypatch.undo()
        assert table(run(config, folder)[0]) == whole


def test_parallel_equals_serial(config, tmp_path):
    serial = table(run(config, tmp_path / "serial")[0])
    assert (
        table(run(config, tmp_path / "parallel", executor="local", jobs=2)[0]) == serial
    )


SHOOT_A_WORKER = """
import os, signal, sys
from pathlib import Path
from switch_ema.bench.compare import run_comparison
from switch_ema.bench.execute.local import Pool
from switch_ema.bench.execute.options import RunOptions
from switch_ema.bench.plan.config import CompareConfig

run = Pool.run
shots = []

def shooting(self, cells, context_of, progress):
    def shoot(cell, *told):
        if not shots:
            shots.append(os.kill(self._workers[0].process.pid, signal.SIGKILL))
        progress(cell, *told)
    return run(self, cells, context_of, shoot)

if __name__ == "__main__":
    Pool.run = shooting
    config = CompareConfig.from_json(Path(sys.argv[1]).read_text())
    options = RunOptions(out=Path(sys.argv[2]), jobs=2, device="cpu")
    assert run_comparison(config, options).error is None
    assert shots
"""


def test_a_worker_that_is_killed_costs_nothing(config, tmp_path):
    """SIGKILL to one of two workers while they train: its cell is trained again."""
    whole = table(run(config, tmp_path / "whole")[0])
    script, saved = tmp_path / "shoot.py", tmp_path / "config.json"
    script.write_text(SHOOT_A_WORKER)
    saved.write_text(config.to_json())
    command = [sys.executable, str(script), str(saved), str(tmp_path / "shot")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert table(tmp_path / "shot" / config.default_name / "report.html") == whole


def command_line(config, tmp_path):
    saved = tmp_path / "config.json"
    saved.write_text(config.to_json())
    return [
        *(sys.executable, "-m", "switch_ema", "compare", "--config", str(saved)),
        *("--out", str(tmp_path / "runs"), "--jobs", "2", "--device", "cpu"),
    ]


def test_kill_minus_nine_and_the_same_command_again(config, tmp_path):
    config = dataclasses.replace(config, epochs=40)
    whole = table(run(config, tmp_path / "whole")[0])
    process = subprocess.Popen(
        command_line(config, tmp_path), stdout=subprocess.DEVNULL
    )
    folder = tmp_path / "runs" / config.default_name
    wait_for(lambda: any(folder.glob("cells/*.pt")), process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = subprocess.run(
        command_line(config, tmp_path), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert table(folder / "report.html") == whole


# The second seed never ends, so the signal comes in time on any machine.
WAITS = """

class Waits(Tiny):
    def train_loader(self, epoch):
        import time

        if self.seed == 1:
            time.sleep(600)
        return super().train_loader(epoch)
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_a_report_of_what_finished(config, tmp_path, how):
    file = tmp_path / "waits.py"
    file.write_text(TINY_TASK + WAITS)
    config = dataclasses.replace(config, tasks=(f"{file}:Waits",))
    process = subprocess.Popen(
        command_line(config, tmp_path),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    folder = tmp_path / "runs" / config.default_name
    results = folder / "results.sqlite"
    wait_for(lambda: stored(results) == 3, process)  # the first seed's three
    os.kill(process.pid, how)
    _, errors = process.communicate()
    assert process.returncode == 128 + how
    assert errors.strip() == "switch-ema: stopped; run the same command to continue."
    assert (folder / "report.html").stat().st_size > 10_000


def stored(path):
    with contextlib.suppress(UsageError):  # not there, or not complete, yet
        return len(Results(path).statuses())
    return 0


def wait_for(condition, process, seconds=600):
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, "it ended before it could be stopped"
        assert time.monotonic() < end
        time.sleep(0.05)


def test_two_processes_cannot_use_one_run(config, tmp_path):
    folder = tmp_path / config.default_name
    with locked(folder), pytest.raises(UsageError, match="in use by another process"):
        run(config, tmp_path)
    assert not (folder / "results.sqlite").exists()


def test_a_run_of_a_task_that_was_edited_is_not_continued(tiny, tmp_path):
    name, _, rest = tiny.partition(".py")
    file = tmp_path / "mine.py"
    file.write_text(Path(f"{name}.py").read_text())
    tasks = (f"{file}{rest}",)
    config = CompareConfig(tasks=tasks, methods=("plain", "ema"), seeds=2)
    path, _ = run(config, tmp_path, name="mine")
    before = table(path)
    with file.open("a") as source:
        source.write("# edited\n")
    with pytest.raises(UsageError, match="the file of a task has changed since"):
        run(config, tmp_path, name="mine")
    assert table(path) == before


def test_a_run_of_other_settings_is_not_overwritten(config, tmp_path):
    path, _ = run(config, tmp_path, name="mine")
    before = table(path)
    with pytest.raises(UsageError, match="other settings; choose another --name"):
        run(dataclasses.replace(config, epochs=1), tmp_path, name="mine")
    assert table(path) == before


def test_another_smallest_effect_judges_the_same_trainings_again(config, tmp_path):
    path, _ = run(config, tmp_path)
    (before,) = table(path)

    def smallest(**chosen):
        settings = dataclasses.replace(config, **chosen)
        again, text = run(settings, tmp_path)
        assert again == path and "6 of 6 trainings are already done" in text
        ((curves, results, _),) = table(path)
        assert curves == before[0]
        return results["error"][1].difference.smallest_effect

    own = smallest()
    assert smallest(smallest_effect=7.5) == 7.5
    assert smallest() == own != 7.5


def test_diverged_cells_are_told_and_the_others_go_on(tiny, tmp_path):
    config = CompareConfig(
        tasks=(f"{tiny}:diverge=True", tiny), methods=("plain", "ema"), seeds=2
    )
    path, text = run(config, tmp_path)
    assert "diverged" in text
    bad, good = table(path)
    assert bad[2] == good[2] == 0
    assert [r.last.n for r in good[1]["error"]] == [2, 2]


def test_an_error_in_the_users_task_is_one_line(tiny, tmp_path):
    config = CompareConfig(
        tasks=(f"{tiny}:fail=True",), methods=("plain", "ema"), seeds=2
    )
    with pytest.raises(UsageError, match=r"tiny\.py, line \d+: KeyError: 'lost key'"):
        run(config, tmp_path)


def test_tuning_uses_a_validation_split_and_its_own_seeds(tiny, tmp_path):
    config = CompareConfig(
        tasks=(tiny,), methods=("plain", "ema", "switch-ema"), seeds=2, tune=2
    )
    path, text = run(config, tmp_path)
    assert f"Tuned for {tiny}: plain, ema:decay=0.99" in text
    tuned, results = open_run(path.parent)
    assert tuned.methods[0] == "plain" and tuned.tune == 0
    assert tuned.methods[:3] == config.methods and len(tuned.methods) == 5
    assert all(":decay=" in method for method in tuned.methods[3:])
    assert len(results.statuses()) > 6  # the trials are stored as well
    again, _ = run(config, tmp_path)
    assert table(again) == table(path)


def test_tuned_and_untuned_are_compared_on_fresh_seeds(tiny, tmp_path):
    config = CompareConfig(
        tasks=(tiny,), methods=("plain", "ema", "switch-ema"), seeds=3, tune="lr"
    )
    path, text = run(config, tmp_path)
    told = text[text.index("untuned and tuned") :]
    for method in ("ema", "switch-ema"):
        assert re.search(rf"{method}\S* .*\[.*\] +[+-]", told), told
    assert "with every method tuned on held-out data" in " ".join(told.split())
    untuned, tuned = table(path)
    plain = CompareConfig(tasks=(tiny,), methods=config.methods, seeds=3)
    assert untuned == table(run(plain, tmp_path)[0])[0]  # the same seeds as ever
    assert [r.method for r in tuned[1]["error"]] == list(config.methods)
    assert "untuned" in path.read_text()


def test_every_task_is_tuned_by_itself(tiny, tmp_path):
    reverse = tmp_path / "reverse.py"  # a large error is good there
    reverse.write_text(
        TINY_TASK.replace("higher_is_better=False", "higher_is_better=True")
    )
    tasks = (tiny, f"{reverse}:Tiny")
    config = CompareConfig(
        tasks=tasks, methods=("plain", "ema"), seeds=2, tune="lr=0.0001,0.1"
    )
    path, text = run(config, tmp_path / "runs")
    rates = {tasks[0]: 0.1, tasks[1]: 0.0001}
    for task, rate in rates.items():
        assert f"Tuned for {task}: plain@lr={rate}, ema@lr={rate}\n" in text
    settings, results = open_run(path.parent)
    for sweep in summarize(settings, results, "run").sweeps:
        chosen = {name: f"{name}@lr={rates[sweep.task]}" for name in config.methods}
        assert [point.settings for point in sweep.points] == [{}, chosen]
        assert all(not point.missing for point in sweep.points)
    trials, compared = 2 * 2 * 3, 2 * 2 * 2  # tasks, settings, seeds
    assert len(results.statuses()) == trials + compared
    for kept in load_kept(path.parent, settings.methods, "cpu"):
        tuned = {f"{name}@lr={rates[kept.name]}" for name in config.methods}
        assert set(kept.weights) == {*config.methods, *tuned}


def test_a_sweep_is_resumed_and_shows_every_value(tiny, tmp_path, monkeypatch):
    config = CompareConfig(
        tasks=(tiny,), methods=("plain", "ema@lr*f"), seeds=3, sweep="lr=0.01,0.05,0.1"
    )
    whole, text = run(config, tmp_path / "whole")
    assert "lr at 3 values" in text and "trains at 0.00" in text
    original, calls = loop.take_step, 0

    def dies(*arguments):
        nonlocal calls
        calls += 1
        if calls == 50:
            raise Killed
        return original(*arguments)

    monkeypatch.setattr(loop, "take_step", dies)
    with contextlib.suppress(Killed):
        run(config, tmp_path / "killed")
    monkeypatch.undo()
    killed, _ = run(config, tmp_path / "killed")
    assert table(killed) == table(whole)
    own = CompareConfig(tasks=(tiny,), methods=("plain", "ema"), seeds=3)
    at_own_rate = table(whole)[1][0]["error"]["plain"]
    assert at_own_rate == table(run(own, tmp_path)[0])[0][0]["error"]["plain"]


def test_a_dry_run_prints_the_plan_only(config, tmp_path):
    _, text = run(config, tmp_path / "runs", dry_run=True)
    assert "Plan" in text
    assert not (tmp_path / "runs").exists()
