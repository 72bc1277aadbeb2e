"""A finished comparison that several commands look at."""

import pytest

from switch_ema.bench.compare import run_comparison
from switch_ema.bench.execute.options import RunOptions
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.cli import main


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """Digits and moons with a passive and an active method, two seeds, two epochs."""
    out = tmp_path_factory.mktemp("finished")
    config = CompareConfig(
        tasks=("digits:size=200", "moons"),
        methods=("plain", "ema:decay=0.9", "switch-ema", "lawa"),
        seeds=2,
        epochs=2,
    )
    options = RunOptions(out=out, name="run", executor="inline", device="cpu")
    run_comparison(config, options)
    return out / "run"


@pytest.fixture
def call(capsys, tmp_path, monkeypatch):
    """Run a command; return its exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")

    def run(*arguments):
        code = 0
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as left:
            code = left.code
        out, err = capsys.readouterr()
        return code, out, err

    return run
