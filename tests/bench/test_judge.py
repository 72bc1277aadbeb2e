"""Existing logs get the statistics of a comparison."""

import re
import subprocess
import sys

import pytest

import switch_ema
from switch_ema.bench.compare import run_comparison
from switch_ema.bench.errors import UsageError
from switch_ema.bench.execute.options import RunOptions
from switch_ema.bench.judge import judge
from switch_ema.bench.logs.naming import group_logs
from switch_ema.bench.report.first_screen import first_screen
from switch_ema.bench.report.rows import make_rows
from switch_ema.bench.stats.paired import compare

PLAIN = {0: [1.0, 2.0137], 1: [1.0, 2.5391], 2: [1.0, 3.5023]}
EMA = {0: [1.0, 2.9871], 1: [1.0, 3.5519], 2: [2.0, 4.4147]}


@pytest.fixture
def logs(tmp_path):
    """Write logs by method and seed; return the paths by method."""

    def write(**methods):
        found = {}
        for method, seeds in methods.items():
            for seed, curve in seeds.items():
                path = tmp_path / method / f"seed-{seed}.csv"
                path.parent.mkdir(exist_ok=True)
                path.write_text("epoch,score\n" + "".join(f"0,{v}\n" for v in curve))
                found.setdefault(method, []).append(path)
        return found

    return write


def test_the_numbers_are_those_of_the_paired_statistics(logs):
    found = switch_ema.judge(logs(plain=PLAIN, ema=EMA), metric="score")
    curves = {"plain": PLAIN, "ema": EMA}
    expected = compare(curves, higher_is_better=True)
    assert list(found.results.values()) == expected
    assert found.results["ema"].verdict == "helps"
    assert found.sentence.startswith("ema helps: +0.97") and found.problems == []
    assert found.sentence in str(found) and "| ema |" in str(found)


def test_logs_of_more_seeds_can_be_judged_again_and_again(logs):
    gains = [0.9, 1.4, 0.6, 1.1, 1.3, 0.8, 1.0, 1.2, 0.7, 1.5, 1.0, 0.9, 1.1, 1.2]
    plain = {seed: [2.0 + seed % 5 / 3] for seed in range(len(gains))}
    ema = {seed: [plain[seed][0] + gain] for seed, gain in enumerate(gains)}
    paths = logs(plain=plain, ema=ema)
    once = judge(paths, metric="score").results["ema"].difference
    found = judge(paths, metric="score", until_decided=True)
    often = found.results["ema"].difference
    assert found.results["ema"].verdict == "helps" and found.summary.tasks[0].sequential
    assert often.mean == once.mean
    assert often.low < once.low and often.high > once.high and often.p > once.p
    # Eight logs would do for a single look, but not for many.
    few = {method: own[:8] for method, own in paths.items()}
    assert judge(few, metric="score").results["ema"].verdict == "helps"
    again = judge(few, metric="score", until_decided=True)
    assert again.results["ema"].verdict == "undecided"
    (advice,) = [text for _, text in first_screen(again.summary.tasks[0])][-1:]
    assert re.search(r"about 1[2-4] seeds would decide ema", advice)


def test_direction_and_baseline(logs):
    paths = logs(first=PLAIN, second=EMA)
    lower = judge(paths, metric="score", lower_is_better=True)
    assert lower.results["second"].verdict == "hurts"
    other = judge(paths, metric="score", baseline="second")
    assert other.results["first"].verdict == "hurts"
    with pytest.raises(
        UsageError, match="baseline 'third'; the methods are first, sec"
    ):
        judge(paths, metric="score", baseline="third")


def test_the_only_metric_needs_no_name(logs):
    assert judge(logs(plain=PLAIN, ema=EMA)).summary.tasks[0].metrics[0].name == "score"


def test_what_does_not_count_is_named(logs):
    short = EMA | {1: [1.0], 3: [1.0, 2.0], 2: [1.0, float("nan")]}
    found = judge(logs(plain=PLAIN, ema=short), metric="score")
    told = [problem.partition("seed-")[2] for problem in found.problems]
    assert told == [
        "1.csv has 1 of 2 values of score; excluded as unfinished.",
        "2.csv ends with nan; excluded.",
        "3.csv is unpaired: plain has no log with seed 3.",
    ]
    assert found.results["ema"].verdict == "undecided"


@pytest.mark.parametrize(
    ("methods", "metric", "sentence"),
    [
        ({"plain": PLAIN}, "score", "all logs belong to one method, plain"),
        ({"plain": PLAIN, "ema": EMA}, "loss", "has no 'loss'; it has score"),
        (
            {"plain": PLAIN, "ema": {0: [1.0]}},
            "score",
            "logs of ema have at most 1 value of score, other methods up to 2",
        ),
        (
            {"plain": PLAIN, "ema": {7: [1.0, 2.0]}},
            "score",
            "ema and plain have no seed in common: 7 vs 0, 1 and 2",
        ),
    ],
)
def test_bad_logs_are_one_sentence(logs, methods, metric, sentence):
    with pytest.raises(UsageError, match=sentence):
        judge(logs(**methods), metric=metric)


def test_columns_that_do_not_match_are_named(tmp_path):
    names = {"plain": "epoch,acc,loss", "ema": "epoch,accuracy", "swa": "epoch,step"}
    paths = {}
    for method, header in names.items():
        paths[method] = [tmp_path / f"{method}.csv"]
        paths[method][0].write_text(header + "\n" + "1," * header.count(",") + "2\n")
    with pytest.raises(UsageError) as told:
        judge({"plain": paths["plain"], "ema": paths["ema"]})
    text = str(told.value).replace(f"{tmp_path}/", "")
    common = "the logs have no column in common: plain.csv has acc, loss; "
    assert text == f"{common}ema.csv has accuracy."
    with pytest.raises(UsageError, match=r"swa.csv has no metric; it has epoch, step"):
        judge({"swa": paths["swa"], "ema": paths["ema"]})
    with pytest.raises(UsageError, match=r"has no 'acc'; it has accuracy\."):
        judge({"plain": paths["plain"], "ema": paths["ema"]}, metric="acc")
    with pytest.raises(UsageError, match="there are no logs"):
        judge({}, metric="acc")


def test_logs_of_a_comparison_give_its_table(config, tmp_path):
    """TensorBoard keeps float32, so the last digits may differ, the cells may not."""
    options = RunOptions(
        out=tmp_path,
        name="run",
        executor="inline",
        device="cpu",
        track=("tensorboard",),
    )
    (task,) = run_comparison(config, options).summary.tasks
    logs = group_logs([str(tmp_path / "run" / "trackers" / "tiny-*")])
    (judged,) = judge(logs, metric="error").summary.tasks
    cells = {row.method: row for row in make_rows(task, task.metrics[0])}
    judged_cells = {row.method: row for row in make_rows(judged, judged.metrics[0])}
    assert judged_cells == cells and len(cells) == len(config.methods)


def test_judging_imports_no_task_and_no_trainer():
    code = "import sys, switch_ema; switch_ema.judge; print(*sys.modules)"
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert not {"accelerate", "timm", "torchvision"} & set(run.stdout.split())
