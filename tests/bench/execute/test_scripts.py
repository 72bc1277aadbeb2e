"""A command of the user's is a training of a comparison like any other."""

import errno
import fcntl
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from switch_ema.bench.compare import run_comparison, summarize_run
from switch_ema.bench.errors import UsageError
from switch_ema.bench.execute.cells import train_cells
from switch_ema.bench.execute.local import Pool
from switch_ema.bench.execute.options import RunOptions
from switch_ema.bench.execute.scripts import _Files, _locked, run_script
from switch_ema.bench.judge import judge
from switch_ema.bench.loading import load_task_class
from switch_ema.bench.logs.naming import group_logs
from switch_ema.bench.plan.cells import Cell, make_plan
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.recipe import Recipe
from switch_ema.bench.report.page import write_run_page
from switch_ema.bench.report.rows import make_rows
from switch_ema.bench.results.folder import open_run
from switch_ema.bench.train.context import RunContext
from tests.bench.execute.test_guard import (
    FAMILY,
    family,
    is_alive,
    survivors,
    wait_for,
)

TRAIN = """
import argparse, os
import torch
from torch import distributed, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
import switch_ema


def test(model, loader):
    model.eval()
    with torch.no_grad():
        return sum((model(x).argmax(1) == y).sum().item() for x, y in loader) / 2


def main(seed):
    torch.manual_seed(seed)
    x = torch.randn(400, 4)
    y = (x.sum(1) + 0.5 * torch.randn(400) > 0).long()
    halves = torch.arange(400).split(200)
    train_set, test_set = (TensorDataset(x[half], y[half]) for half in halves)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 2))
    sampler = None
    if "RANK" in os.environ:
        distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
        sampler = DistributedSampler(train_set)
    loader = DataLoader(train_set, 20, shuffle=sampler is None, sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    trial = switch_ema.trial(model, optimizer)
    seen = []
    for epoch in range(2):
        model.train()
        for inputs, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
        trial.end_epoch()
        measure = lambda: {"accuracy": test(model, DataLoader(test_set, 100))}
        seen.append(trial.evaluate(measure)["accuracy"])
    return seen


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int)
    main(parser.parse_args().seed)
"""

# What a trial writes, without the seconds that it takes to import torch.
REPORT = """
import json, os, sys
told = json.loads(os.environ["SWITCH_EMA_TRIAL"])
seed = int(sys.argv[1])
notes = {"train_seconds": 1.0, "evaluate_seconds": 0.5, "memory_mb": 7.0}
notes["counts_updates"] = 0
attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
rows = [{"trial": {"trained": {"Network": "N"}, "attempt": attempt, "process": 7}}]
rows[0]["options"] = dict.fromkeys(told["methods"], "")
for epoch in (1, 2):
    values = {m: {"%s": epoch + (1.0137 + 0.0173 * seed) ** (i + 2) + i * len(m)}
              for i, m in enumerate(told["methods"])}
    if "switch-ema" in values:
        values["switch-ema"]["%s"] += 0.731 + 0.0219 * seed**2
    rows.append({"epoch": epoch, **values, "trial": notes})
open(told["log"], "a").write("".join(json.dumps(row) + chr(10) for row in rows))
"""
REPORT = REPORT.replace("%s", "score")


def cell_of(path, *methods, launch=(sys.executable,)):
    command = " ".join([*map(str, launch), str(path), "--seed {seed}"])
    return Cell(f"script:{command}", None, Recipe(), methods, (0,))


@pytest.fixture
def train(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    return path


def test_the_values_of_plain_are_those_of_the_script_alone(train, tmp_path):
    cell = cell_of(train, "plain", "ema:decay=0.9")
    told = []
    result = run_script(
        cell, RunContext(tmp_path / "run"), lambda *now: told.append(now)
    )
    assert (result.status, result.message) == ("done", "")
    alone = runpy.run_path(str(train))["main"](0)
    assert told[-1] == (2, ("accuracy", alone[-1]))
    assert [value for (value,) in result.values["plain"]["accuracy"]] == alone
    assert result.trained["Optimizer"] == "SGD, learning rate 0.2"
    assert result.options["ema:decay=0.9"].startswith("decay=0.9")


def test_under_torchrun_rank_0_reports(train, tmp_path):
    launch = (sys.executable, "-m", "torch.distributed.run", "--standalone")
    cell = cell_of(train, "switch-ema", launch=(*launch, "--nproc-per-node=2"))
    result = run_script(cell, RunContext(tmp_path / "run"))
    assert (result.status, result.message) == ("done", "")
    assert len(result.values["switch-ema"]["accuracy"]) == 2
    assert result.trained["Processes"] == "2"


CHILD = """
import subprocess, sys
import torch
import switch_ema

model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
trial = switch_ema.trial(model, optimizer)
is_child = len(sys.argv) > 3
trial.evaluate(lambda: {"score": -1.0 if is_child else 1.0})
if not is_child:
    subprocess.run([sys.executable, *sys.argv, "child"])
"""


def test_a_child_process_cannot_replace_the_values_of_its_parent(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(CHILD)
    result = run_script(cell_of(path, "plain"), RunContext(tmp_path / "run"))
    assert result.status == "failed" and result.values == {}
    assert "switch_ema.trial was called in 2 of its processes" in result.message
    assert "without SWITCH_EMA_TRIAL in their environment" in result.message


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Write a script; return what compares it, inline."""
    monkeypatch.chdir(tmp_path)

    def compare(
        text, name="run", arguments="{seed}", keep_going=False, jobs=0, **options
    ):
        Path("report.py").write_text(text)
        task = f"script:{sys.executable} report.py {arguments}"
        config = CompareConfig(
            tasks=(task,), methods=("plain", "ema", "switch-ema"), seeds=3, **options
        )
        run_options = RunOptions(
            out=tmp_path,
            name=name,
            executor="local" if jobs else "inline",
            jobs=jobs,
            device="cpu",
            keep_going=keep_going,
        )
        return run_comparison(config, run_options)

    return compare


def test_a_comparison_of_scripts_is_stored_and_judged_like_any_other(script, tmp_path):
    run = script(REPORT)
    assert run.error is None
    (task,) = run.summary.tasks
    assert task.epochs == 2 and task.metrics[0].name == "score"
    assert [r.verdict for r in task.results["score"]] == ["baseline", "helps", "helps"]
    assert [(c.methods, c.train_seconds) for c in task.costs] == [
        (("plain", "ema"), 1.0),
        (("switch-ema",), 1.0),
    ]
    assert summarize_run(tmp_path / "run").tasks[0].results == task.results
    (judged,) = judge(group_logs([str(tmp_path / "run" / "logs")])).summary.tasks
    cells = {row.method: row for row in make_rows(task, task.metrics[0])}
    assert {row.method: row for row in make_rows(judged, judged.metrics[0])} == cells


def test_killed_and_continued_gives_the_same_table(script, tmp_path):
    whole = script(REPORT)
    dies = (
        'import os, pathlib\nif not pathlib.Path("again").exists() and '
        'os.sys.argv[1] == "1":\n    os.kill(os.getpid(), 9)\n'
    )
    first = script(dies + REPORT, name="killed", keep_going=True)
    assert "2 of 6 trainings failed" in str(first.error)
    assert "ended by signal 9; its error output is empty" in str(first.error)
    Path("again").touch()
    second = script(dies + REPORT, name="killed")
    assert second.error is None
    (expected,), (found,) = whole.summary.tasks, second.summary.tasks
    assert (found.results, found.curves) == (expected.results, expected.curves)


FAILS = "import os, sys\nif sys.argv[1] == '1':\n    sys.exit('no\\tdata')\n"


@pytest.mark.parametrize("jobs", [0, 1])
def test_a_script_stops_at_its_first_failure_and_keeps_what_finished(
    script, tmp_path, jobs
):
    run = script(f"{FAILS}{REPORT}", jobs=jobs)
    text = str(run.error)
    assert text.startswith("1 of 3 trainings failed: script:")
    assert "plain + ema, seed 1: ended with exit code 1; no\tdata (all of it" in text
    assert text.endswith(
        "3 trainings are left: repair the script and repeat the command, or add "
        "--keep-going"
    )
    _, results = open_run(tmp_path / "run")
    assert sorted(results.statuses().values()) == ["done", "done", "failed"]
    results.close()
    again = script(f"{FAILS}{REPORT}", keep_going=True)
    assert str(again.error).startswith("2 of 4 trainings failed")
    assert len(again.summary.tasks[0].problems) == 2


def test_a_launcher_may_start_a_script_anew(script):
    whole = script(REPORT).summary.tasks[0]
    text = f"{REPORT}os.environ['TORCHELASTIC_RESTART_COUNT'] = '1'\n{REPORT}"
    again = script(text, name="again").summary.tasks[0]
    assert again.curves == whole.curves


@pytest.mark.parametrize(
    ("text", "options", "sentence"),
    [
        ("print(1)", {}, "the script never called switch_ema.trial(model, optimizer)"),
        (
            REPORT.replace("(1, 2)", "()"),
            {},
            "the script never called trial.evaluate, so it has no values",
        ),
        (
            "import os\nos.write(2, b'reading')\nraise ValueError('no data')",
            {},
            "ended with exit code 1; ",
        ),
        (REPORT, {"metric": "loss"}, "it reports score, but the comparison needs loss"),
        (
            REPORT.replace('"score"', '"score" if seed else "loss"'),
            {},
            "it reports score, but others reported loss",
        ),
        (
            REPORT.replace('{"epoch": epoch', '{"epoch": 0').replace(
                '{"Network": "N"}', '{}, "waits_for_epochs": ["switch-ema"]'
            ),
            {},
            "never called trial.end_epoch, needed by switch-ema; call it after "
            "each epoch, or count in steps, as in switch-ema:switch_every=100it",
        ),
        (
            REPORT.replace('"attempt":', '"counts_updates": True, "attempt":'),
            {},
            "never called trial.update, which counts the steps of a trial without an",
        ),
        (
            REPORT + REPORT.replace("sys.argv[1]", "sys.argv[1] + '0'"),
            {},
            "switch_ema.trial was called in 2 of its processes (ids 7 and 7), so it "
            "is unclear whose values count; call it in one, and start the others ",
        ),
        (REPORT.replace("1.0137", "float('nan')"), {}, None),
    ],
)
def test_what_goes_wrong_is_told(script, text, options, sentence):
    run = script(text, **options)
    if sentence is None:
        assert "diverged, its last score is nan" in run.summary.tasks[0].problems[0]
        return
    assert sentence in str(run.error)
    if "exit code" in sentence:
        assert "raise ValueError('no data') | ValueError: no data (all of" in str(
            run.error
        )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"tasks": ("script:python train.py",)}, "needs a placeholder for the seed"),
        ({"tasks": ("script:python 'x {seed}",)}, "cannot be split into words"),
        ({"epochs": 3}, "epochs does not apply to a script"),
        ({"deploy": "int8"}, "deploy does not apply to a script"),
        ({"sweep": "decay=0.9,0.99"}, "sweep does not apply to a script"),
        (
            {"methods": ("plain", "ema@lr*0.5")},
            "ema@lr\\*0.5 does not work with a script",
        ),
        ({"methods": ("plain-again",)}, "plain-again does not work with a script"),
        ({"tasks": ("digits",), "metric": "loss"}, "are for scripts; tasks define"),
        ({"lower_is_better": True, "higher_is_better": True}, "exclude each other"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(options, sentence):
    given = {"tasks": ("script:python train.py --seed {seed}",), **options}
    with pytest.raises(UsageError, match=sentence):
        make_plan(CompareConfig(**given))


def test_a_program_that_is_not_there(script, tmp_path):
    cell = Cell("script:no-such-program {seed}", None, Recipe(), ("plain",), (0,))
    with pytest.raises(UsageError, match="no-such-program cannot be started: No such"):
        run_script(cell, RunContext(tmp_path / "run"))
    with pytest.raises(UsageError, match="is a script: its run has only values"):
        load_task_class(cell.task)


def test_a_disk_without_locks_names_the_file(tmp_path, monkeypatch):
    def refuse(file, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    lock = tmp_path / "here.lock"
    with pytest.raises(OSError, match="No locks") as told, _locked(lock):
        pass
    assert told.value.filename == str(lock)


def test_trainings_of_different_lengths_are_told(script, tmp_path):
    """Scripts may stop early: the last value of each counts."""
    run = script(REPORT.replace("(1, 2)", "range(1, 3 + seed % 2)"))
    (task,) = run.summary.tasks
    assert run.error is None and task.epochs == 3
    assert [result.last.n for result in task.results["score"]] == [3, 3, 3]
    told = "Trainings reported between 2 and 3 values; the last value of each counts."
    assert task.problems == [told]
    assert told in write_run_page(run.summary, tmp_path / "run").read_text()


def test_each_training_has_an_empty_folder_where_it_asks_for_one(script, tmp_path):
    text = f"{REPORT}\nimport os\nassert not os.listdir(sys.argv[2])\nopen("
    text += "os.path.join(sys.argv[2], 'weights.pt'), 'w').close()\n"
    assert script(text, arguments="{seed} {folder}").error is None
    files = sorted((tmp_path / "run" / "logs").glob("*/weights.pt"))
    assert len(files) == 6
    task = f"script:{sys.executable} report.py {{seed}} {{folder}}"
    cell = Cell(task, None, Recipe(), ("plain", "ema"), (0,))
    for _ in range(2):  # what an earlier attempt has left is gone
        assert run_script(cell, RunContext(tmp_path / "again")).status == "done"


@pytest.mark.parametrize("launch", ["-m pkg.train", "run.sh"])
def test_a_repaired_seed_is_not_stored_beside_those_of_the_old_code(
    launch, tmp_path, monkeypatch
):
    """However the command names its code; a configuration file counts, too."""
    monkeypatch.chdir(tmp_path)
    code, conf = tmp_path / "pkg" / "train.py", tmp_path / "conf.yaml"
    code.parent.mkdir()
    fails = 'import sys\nif sys.argv[1] == "1":\n    sys.exit("broken")\n'
    code.write_text(fails + REPORT)
    conf.write_text("lr: 1")
    Path("run.sh").write_text(f'exec {sys.executable} pkg/train.py "$@"')
    program = sys.executable if launch.startswith("-m") else "bash"
    task = f"script:{program} {launch} {{seed}} --config=conf.yaml"
    config = CompareConfig(tasks=(task,), methods=("plain",), seeds=2)
    options = RunOptions(out=tmp_path, name="run", executor="inline", device="cpu")
    assert "broken" in str(run_comparison(config, options).error)
    code.write_text(REPORT)
    with pytest.raises(UsageError, match="has changed since"):
        run_comparison(config, options)
    code.write_text(fails + REPORT)
    conf.write_text("lr: 2")
    with pytest.raises(UsageError, match=r"conf\.yaml changed since .* was started"):
        run_comparison(config, options)
    conf.write_text("lr: 1")
    assert "broken" in str(run_comparison(config, options).error)


def test_a_configuration_that_changes_during_the_run_stops_it(script):
    Path("conf.yaml").write_text("lr: 1")
    text = f"{REPORT}if sys.argv[1] == '1': open('conf.yaml', 'w').write('lr: 2')\n"
    run = script(text, arguments="{seed} --config conf.yaml")
    assert "conf.yaml changed during the run" in str(run.error)
    assert "let it write to {folder}" in str(run.error)


def test_an_edited_script_is_another_comparison(script):
    assert script(REPORT).error is None
    with pytest.raises(UsageError, match="has changed since"):
        script(REPORT + "\n")


@pytest.fixture
def hangs(tmp_path):
    """A script that starts processes and hangs before it calls a trial."""
    (tmp_path / "family.py").write_text(
        f"import os\nos.chdir({str(tmp_path)!r})\n{FAMILY}"
    )
    yield f"{sys.executable} -S {tmp_path / 'family.py'} {{seed}}"
    for number in family(tmp_path).values():
        if is_alive(number):  # a test has failed
            os.kill(number, signal.SIGKILL)


def test_no_process_of_a_script_outlives_the_timeout(hangs, tmp_path, monkeypatch):
    def silent(pool):  # it is over once the script hangs, however long that took
        hung = len(family(tmp_path)) == 4
        return [w for w in pool._workers if hung and w.cell is not None]

    monkeypatch.setattr(Pool, "_silent", silent)
    cell = Cell(f"script:{hangs}", None, Recipe(), ("plain",), (0,))
    context = RunContext(tmp_path / "run", "cpu")
    results = train_cells([cell], lambda _: context, 1, lambda *_: None, timeout=0.4)
    [(_, result)] = results
    assert result.message == "no epoch was finished within 0.4 s"
    assert survivors(tmp_path) == []


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_of_a_script_outlives_the_comparison(hangs, tmp_path, how):
    command = [
        *(sys.executable, "-m", "switch_ema", "compare", "--script", hangs),
        *("--methods", "plain", "ema", "--seeds", "1", "--out", str(tmp_path / "runs")),
    ]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    wait_for(lambda: len(family(tmp_path)) == 4)
    process.send_signal(how)
    process.wait(timeout=600)
    if how == signal.SIGKILL:  # nobody is left who could wait for the guard
        wait_for(lambda: not survivors(tmp_path))
    assert survivors(tmp_path) == []


def test_an_attempt_waits_for_what_is_left_of_an_earlier_one(script, tmp_path):
    """The guard of a worker that was killed holds the lock until all is quiet."""
    assert script(REPORT).error is None
    cell = Cell(
        f"script:{sys.executable} report.py {{seed}}", None, Recipe(), ("plain",), (0,)
    )
    context = RunContext(tmp_path / "again")
    lock = _Files.of(context.folder, cell).lock
    lock.parent.mkdir(parents=True)
    held = lock.open("w")
    fcntl.flock(held, fcntl.LOCK_EX)
    results = []
    thread = threading.Thread(target=lambda: results.append(run_script(cell, context)))
    thread.start()
    assert not _Files.of(context.folder, cell).values.exists() and results == []
    held.close()
    thread.join(timeout=600)
    assert results[0].status == "done"


def test_the_configuration_of_a_script_is_repeated():
    config = CompareConfig(
        tasks=("script:python train.py --seed {seed}",), metric="acc", seeds=3
    )
    assert CompareConfig.from_json(config.to_json()) == config
    assert config.default_name.startswith("train-")
    assert json.loads(config.to_json())["metric"] == "acc"
    assert "metric" not in json.loads(CompareConfig().to_json())
