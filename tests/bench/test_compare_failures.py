"""What is left of a run: a training that fails does not stop the others."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from switch_ema.bench.errors import UsageError
from switch_ema.bench.execute.options import RunOptions
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.results.folder import open_run
from switch_ema.commands.compare import Compare


@pytest.fixture
def moody(tiny, tmp_path):
    """A task whose first seed fails until a file is there."""
    path = Path(tiny.partition(":")[0])
    missing = f"seed == 0 and not __import__('os').path.exists('{tmp_path / 'cure'}')"
    path.write_text(path.read_text().replace("if self.fail:", f"if self.{missing}:"))
    return tiny


def run(task, folder, methods=("plain", "switch-ema")):
    config = CompareConfig(tasks=(task,), methods=methods, seeds=3)
    options = RunOptions(out=folder, name="run", executor="inline", device="cpu")
    console = Console(file=io.StringIO(), width=120)
    try:
        Compare(settings=config, run=options)(console)
    finally:
        _, results = open_run(folder / "run")
        statuses = sorted(results.statuses().values())
        results.close()
    return statuses, console.file.getvalue()


def test_a_seed_that_fails_is_named_when_the_others_are_done(moody, tmp_path):
    with pytest.raises(UsageError) as failure:
        run(moody, tmp_path)
    text = str(failure.value)
    assert text.startswith(f"2 of 6 trainings failed: {moody}, plain, seed 0 and 1 oth")
    assert "KeyError: 'lost key'" in text and text.count("lost key") == 1
    kept = tmp_path / "run" / "failures"
    assert text.endswith(f"(tracebacks: {kept})")
    for path in kept.iterdir():
        assert path.read_text().startswith("Traceback")
        assert path.read_text().endswith("KeyError: 'lost key'\n")
    assert len(list(kept.iterdir())) == 2
    _, results = open_run(tmp_path / "run")
    assert sorted(results.statuses().values()) == ["done"] * 4 + ["failed"] * 2
    results.close()
    assert "lost key" in (tmp_path / "run" / "report.html").read_text()


def test_the_same_command_again_trains_what_failed(moody, tmp_path):
    with pytest.raises(UsageError, match="2 of 6 trainings failed"):
        run(moody, tmp_path)
    (tmp_path / "cure").touch()
    statuses, text = run(moody, tmp_path)
    assert statuses == ["done"] * 6
    assert "4 of 6 trainings are already done" in text
