"""`switch-ema reproduce --publish` and `--check`, as a user meets them."""

import json
import shutil

from tests.commands.test_reproduce import RUN, folder
from tests.test_cli import TINY, call

__all__ = ["folder"]

MAE = (*RUN, "--rows", "mae")
FILE = "evidence/table-5/mae.jsonl"


def test_a_published_row_is_checked(folder, capsys):
    code, out, _ = call(capsys, *MAE, "--publish")
    assert code == 0 and f"Published: {FILE}" in out
    code, out, _ = call(capsys, *MAE, "--check", "--dry-run")
    assert code == 0 and "plain, ema" in out
    assert not (folder / "runs/check").exists()
    code, out, err = call(capsys, *MAE, "--check")
    assert (code, err) == (0, "")
    # For each of two metrics: two methods over plain, and Switch EMA over EMA.
    assert "6 of 6 verdicts the same." in out
    assert "12 of 12 values equal in all published digits." in out
    assert (folder / "runs/check/table-5/mae/results.sqlite").is_file()


def test_a_difference_is_located_and_a_verdict_that_differs_fails(folder, capsys):
    call(capsys, *MAE, "--seeds", "3", "--publish")
    lines = (folder / FILE).read_text().splitlines()
    for number, line in enumerate(lines):
        values = json.loads(line)
        if values.get("method") == "switch-ema" and "values" in values:
            values["values"][-1] = 100.0 + values["seed"]  # an error is to be low
            lines[number] = json.dumps(values)
    (folder / FILE).write_text("\n".join(lines) + "\n")
    code, out, _ = call(capsys, *MAE, "--seeds", "3", "--check")
    assert code == 1 and "Verdicts that differ: 2." in out
    assert "switch-ema over ema" in out and "hurts" in out
    assert "15 of 18 values equal in all published digits" in out
    assert "in error of switch-ema, seed 2, tiny.py:Tiny: 102 published" in out
    code, out, _ = call(capsys, *MAE, "--seeds", "1", "--check", "--out", "elsewhere")
    assert code == 0 and "5 of 6 values equal" in out  # one seed has no verdict


def test_a_published_row_goes_on_without_its_folder(folder, capsys):
    call(capsys, *MAE, "--publish")
    shutil.rmtree(folder / "runs")
    code, out, _ = call(capsys, *MAE, "--seeds", "3", "--publish")
    assert code == 0 and f"Continues from 4 trainings in {FILE}" in out
    assert "n = 3" in out
    code, _, err = call(capsys, *MAE, "--epochs", "2", "--publish", "--out", "new")
    assert code == 2 and "comparison with other settings" in err


def test_unpublished_rows_cannot_be_checked(folder, capsys):
    code, _, err = call(capsys, *MAE, "--check")
    assert code == 2 and "no published row of table-5 in evidence" in err
    code, _, err = call(capsys, "reproduce", "all", "--publish")
    assert code == 2 and "are for tables by name" in err


def test_a_comparison_is_published_reported_and_continued(folder, capsys):
    own = (*TINY, "--name", "own", "--publish")
    code, out, _ = call(capsys, *own)
    assert code == 0 and "Published: evidence/own.jsonl" in out
    code, out, _ = call(capsys, "report", "evidence/own.jsonl", "--format", "csv")
    assert code == 0 and "switch-ema" in out
    code, out, _ = call(capsys, "report", "evidence/own.jsonl")
    assert code == 0 and "Report:" not in out
    code, out, _ = call(capsys, "judge", "evidence/own.jsonl", "--baseline", "ema")
    assert code == 0 and "vs ema" in out and "A line through noisy points" in out
    chosen = ("--metric", "slope", "--format", "csv")
    code, out, _ = call(capsys, "judge", "evidence/own.jsonl", *chosen)
    assert code == 0 and "slope" in out and "error" not in out
    code, _, err = call(capsys, "judge", "evidence/own.jsonl", "--metric", "speed")
    assert code == 2 and "has no 'speed'; it has error and slope" in err
    code, _, err = call(capsys, "judge", "evidence/own.jsonl", "--baseline", "none")
    assert code == 2 and "has no method 'none'" in err
    code, _, err = call(capsys, "judge", "evidence/own.jsonl", "other.csv")
    assert code == 2 and "one evidence file at a time" in err
    figure = ("figure", "mechanism", "evidence/own.jsonl", "--out", "drawn")
    code, _, _ = call(capsys, *figure)
    assert code == 0 and (folder / "drawn/figure-mechanism/report.html").is_file()
    shutil.rmtree(folder / "runs")
    code, out, _ = call(capsys, *own)
    assert code == 0 and "Continues from" in out
    code, out, _ = call(capsys, "report", "runs/own", "--publish")
    assert code == 0 and "Published: evidence/own.jsonl" in out
