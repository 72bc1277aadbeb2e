"""The run folder: its arithmetic is settled once, and leftovers go."""

import errno
from dataclasses import replace

import pytest

from switch_ema.bench.errors import UsageError
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.results.folder import (
    claim,
    locked,
    remove_leftovers,
    settle_arithmetic,
)
from switch_ema.bench.results.store import Results
from switch_ema.bench.train import context
from switch_ema.zoo.tasks.toy.digits import Digits


@pytest.fixture
def results(tmp_path):
    found = Results(tmp_path / "results.sqlite", create=True)
    yield found
    found.close()


def test_a_run_of_a_task_that_trains_differently_now_is_not_continued(
    results, monkeypatch
):
    config = CompareConfig(tasks=("digits", "moons"), seeds=1)
    claim(results, config, results.path.parent)
    claim(results, config, results.path.parent)  # nothing has changed
    before = results.meta()
    monkeypatch.setattr(Digits, "recipe", replace(Digits.recipe, revision=1))
    told = "^this version trains digits differently than when .* was started, and "
    with pytest.raises(UsageError, match=told):
        claim(results, config, results.path.parent)
    assert results.meta() == before


def test_threads_belong_to_the_run(results):
    assert settle_arithmetic(results, 3).threads == 3
    assert settle_arithmetic(results, None).threads == 3
    with pytest.raises(
        UsageError, match="was started with --threads 3, and results with 1"
    ):
        settle_arithmetic(results, 1)


def test_a_new_run_has_one_thread_whatever_the_machine(results):
    assert settle_arithmetic(results, None).threads == 1


def test_kernels_belong_to_the_run(results, monkeypatch):
    monkeypatch.setattr(context.native, "is_available", lambda: True)
    assert settle_arithmetic(results, None).kernels == "c"
    monkeypatch.setattr(context.native, "is_available", lambda: False)
    with pytest.raises(UsageError, match="started with the kernels 'c' and cannot"):
        settle_arithmetic(results, None)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.ENOLCK, "No locks available"), "No locks available"),
        (NotImplementedError("no flock here"), "no flock here"),
    ],
)
def test_a_disk_without_locks_is_named(tmp_path, monkeypatch, error, reason):
    def refuse(lock, **options):
        raise error

    monkeypatch.setattr("filelock.FileLock.acquire", refuse)
    told = rf"run/\.lock cannot be locked \({reason}\); use --out"
    with pytest.raises(UsageError, match=told), locked(tmp_path / "run"):
        pass


def test_leftovers_of_killed_processes_are_removed(tmp_path):
    cells = tmp_path / "cells"
    cells.mkdir()
    left = [".a.pt.12.partial", "a.12.partial", "partial", ".ray-0af", ".tmp12"]
    for name in (*left, "a.pt", "a.values"):
        (cells / name).touch()
    remove_leftovers(tmp_path)
    assert sorted(path.name for path in cells.iterdir()) == ["a.pt", "a.values"]


def test_files_of_a_script_are_never_removed(tmp_path):
    """A script writes what it likes into its {folder}, under any name."""
    own = tmp_path / "logs" / "train-seed-0-ab.files" / "cells"
    own.mkdir(parents=True)
    names = [".best.pt.partial", ".tmp-weights", "download.partial", "partial"]
    for name in names:
        (own / name).touch()
    remove_leftovers(tmp_path)
    assert sorted(path.name for path in own.iterdir()) == names
