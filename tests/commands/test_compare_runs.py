"""`switch-ema runs`: what became of each run, newest first."""

import os
import re
import shutil
import sqlite3
from datetime import datetime

import pytest

from switch_ema.bench.results.folder import is_running, locked


@pytest.fixture
def runs(finished, tmp_path):
    """Copies of a finished run, changed into what else can become of one."""
    folder = tmp_path / "runs"
    changes = {
        "older": "UPDATE cells SET finished = 1700000000",
        "stopped": "DELETE FROM cells WHERE seeds = '[1]'",
        "broken": "UPDATE cells SET status = 'failed' WHERE seeds = '[1]'",
        "begun": "DELETE FROM cells",
    }
    for number, (name, change) in enumerate(changes.items()):
        shutil.copytree(finished, folder / name)
        file = folder / name / "results.sqlite"
        connection = sqlite3.connect(file)
        connection.execute(f"UPDATE cells SET finished = {1800000000 + 60 * number}")
        connection.execute(change)
        connection.commit()
        connection.close()
        os.utime(file, (1900000000, 1900000000))
    return folder


def lines_of(out):
    """The rows of the table that name a run, by its name."""
    rows = (re.split(r"\s*│\s*", line.strip("│ ")) for line in out.splitlines())
    return {row[0]: row for row in rows if len(row) == 6 and row[0] and row[1]}


def test_each_run_has_its_state_and_the_newest_comes_first(call, runs):
    code, out, _ = call("runs")
    rows = lines_of(out)
    assert code == 0 and list(rows) == ["begun", "broken", "stopped", "older"]
    moment = datetime.fromtimestamp(1700000000).strftime("%Y-%m-%d %H:%M")
    total = rows["older"][4].partition(" of ")[2]
    assert rows["older"][1:5] == [moment, "2", "finished", f"{total} of {total}"]
    assert rows["stopped"][3] == "interrupted"
    assert rows["begun"][3:5] == ["interrupted", f"0 of {total}"]
    left, failed = rows["stopped"][4], rows["broken"][3]
    assert left == rows["broken"][4] and failed.endswith(" failed")
    assert int(failed.split()[0]) + int(left.split()[0]) == int(total)


def test_a_run_that_another_process_trains_is_running(call, runs):
    with locked(runs / "stopped"):
        assert is_running(runs / "stopped")
        rows = lines_of(call("runs")[1])
    assert rows["stopped"][3] == "running" and rows["broken"][3] != "running"
    assert not is_running(runs / "stopped")


def test_nothing_is_cut_off_in_a_narrow_terminal(call, runs, monkeypatch):
    monkeypatch.setenv("COLUMNS", "70")
    code, out, _ = call("runs")
    assert code == 0 and "…" not in out and max(map(len, out.splitlines())) <= 70


def test_an_empty_folder_says_what_creates_runs(call):
    code, out, _ = call("runs", "--out", "nowhere")
    assert code == 0
    assert out == "No runs in nowhere; switch-ema compare creates them.\n"
