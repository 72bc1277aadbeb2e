"""A run is shown as it was trained, whatever has become of its task's file."""

import io
import re
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from switch_ema.bench.compare import run_comparison
from switch_ema.bench.errors import UsageError
from switch_ema.bench.execute.options import RunOptions
from switch_ema.bench.plan.cells import make_plan
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.plan.task_snapshot import FACTS, dump_facts, facts_of, load_facts
from switch_ema.bench.results.folder import open_run
from switch_ema.commands.compare import Report
from tests.bench.conftest import TINY_TASK


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run, its task named relative to the folder."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("tiny.py").write_text(TINY_TASK)
        config = CompareConfig(
            tasks=("tiny.py:Tiny",), methods=("plain", "ema", "switch-ema"), seeds=2
        )
        options = RunOptions(name="run", executor="inline", device="cpu")
        run_comparison(config, options)
    return folder


@pytest.fixture
def folder(trained, tmp_path, monkeypatch):
    copy = shutil.copytree(trained, tmp_path / "copy")
    monkeypatch.chdir(copy)
    return copy


def shown(run=Path("runs/run")):
    """The report as one line, without the costs and the sentence about the file."""
    console = Console(file=io.StringIO(), width=100)
    Report(run, verbose=True)(console)
    return " ".join(console.file.getvalue().split()).partition(" Report: ")[0]


def without_problem(text):
    return re.sub(r"\* Problem: The file .* original file\. ", "", text)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("epochs=3", "epochs=5"),
        ('"error"', '"mistake"'),
        ("class Tiny", "class Tony"),
        ("import torch\n", "import nothing_like_it\n"),
    ],
)
def test_a_file_that_was_edited_since(folder, old, new):
    before = shown()
    assert "error decides" in before and "Problem" not in before
    Path("tiny.py").write_text(TINY_TASK.replace(old, new))
    after = shown()
    assert "The file of tiny.py:Tiny has changed since the run was started" in after
    assert without_problem(after) == before
    assert "has changed since" in Path("runs/run/report.html").read_text()


def test_a_file_that_is_not_there_any_more(folder, tmp_path, monkeypatch):
    before = shown()
    monkeypatch.chdir(tmp_path)
    after = shown(folder / "runs" / "run")
    assert "tiny.py:Tiny is no longer where it was when the run was started" in after
    assert without_problem(after) == before


@pytest.mark.parametrize(
    ("note", "message"),
    [
        ("{}", "has no record of its task tiny.py:Tiny, and showing a run does not"),
        ("[]", "has no record of its task"),
        ("{", "the run's record of its tasks is not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('{"tiny.py:Tiny": {"metrics": 3}}', "record of tiny.py:Tiny is damaged"),
        ('{"tiny.py:Tiny": 3}', "record of tiny.py:Tiny is damaged"),
    ],
)
def test_a_file_that_a_run_names_is_never_run_to_show_it(folder, note, message):
    """A run may come from somebody else, and so may the file."""
    Path("tiny.py").write_text("from pathlib import Path; Path('pwned').touch()")
    _, results = open_run(Path("runs/run"))
    results.set_meta(FACTS, note)
    results.close()
    with pytest.raises(UsageError, match=message):
        shown()
    assert not Path("pwned").exists()


@pytest.mark.parametrize(
    "task",
    [
        "noisy-digits",
        "moons",
        pytest.param("byol", marks=pytest.mark.zoo),
        "images:size=320",
    ],
)
def test_a_plan_from_stored_facts_has_the_same_cells(task):
    config = CompareConfig(tasks=(task,), seeds=2, epochs=2, optimizer="sgd:lr=0.1")
    facts = load_facts({FACTS: dump_facts(config.tasks)}, config.tasks)
    assert facts == {task: facts_of(task)}
    stored, fresh = make_plan(config, facts), make_plan(config)
    assert [cell.id for cell in stored] == [cell.id for cell in fresh]
