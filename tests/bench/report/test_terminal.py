"""The terminal's tables: numbers, names as they are, and a width that is kept."""

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from switch_ema.bench.plan.cells import Cell
from switch_ema.bench.recipe import Recipe
from switch_ema.bench.report.rows import make_rows
from switch_ema.bench.report.terminal import (
    print_comparison,
    print_findings,
    print_plan,
)
from switch_ema.bench.report.verdict_text import best_sentence
from switch_ema.bench.stats.paired import compare
from switch_ema.bench.stats.summary import ComparisonSummary
from tests.bench.report.synthetic import (
    NASTY_METHOD,
    NASTY_TASK,
    make_summary,
    make_task,
)


def shown(summary: ComparisonSummary, width: int = 100, *, colour: bool = False) -> str:
    file = io.StringIO()
    console = Console(
        file=file,
        width=width,
        force_terminal=colour,
        color_system="standard" if colour else None,
    )
    print_comparison(summary, console)
    return file.getvalue()


def without_spaces(text: str) -> str:
    return re.sub(r"\s+", "", text)


@pytest.mark.parametrize("width", [100, 80])
def test_the_deciding_numbers_of_every_method_are_in_the_table(width: int) -> None:
    summary = make_summary()
    text = shown(summary, width)
    for result in summary.tasks[0].results["accuracy"]:
        last = f"{result.last.mean:.2f} ± {result.last.sd:.2f}"
        assert re.search(rf"^{result.method} .*{last}", text, re.MULTILINE)
        if result.difference is not None:
            assert f"{result.difference.mean:+.2f}" in text
            low, high = result.difference.low, result.difference.high
            assert f"[{low:.2f}, {high:.2f}]" in text


@pytest.mark.parametrize("width", [100, 80])
def test_no_line_is_wider_than_the_console(width: int) -> None:
    assert max(map(len, shown(make_summary(), width).splitlines())) <= width


def test_rows_take_one_line_at_100_columns_unless_something_is_long() -> None:
    text = shown(make_summary())
    assert re.search(r"^switch-ema .* helps .* 8$", text, re.MULTILINE)


def test_the_best_epoch_stands_beside_the_last_or_below_it() -> None:
    wide, narrow = (shown(make_summary(), width) for width in (100, 80))
    assert re.search(r"for infor-\s.*\n.*mation:", wide)
    assert "[best epoch]" in narrow and "[best epoch]" not in wide


def four_decimals() -> ComparisonSummary:
    """A summary whose numbers need more room: 0.8973 ± 0.0039."""
    task = make_summary().tasks[0]
    curves = {
        method: {seed: [value / 100 for value in run] for seed, run in runs.items()}
        for method, runs in task.curves["accuracy"].items()
    }
    results = {"accuracy": compare(curves, higher_is_better=True)}
    task = replace(
        task, metrics=task.metrics[:1], curves={"accuracy": curves}, results=results
    )
    return replace(make_summary(), tasks=[task])


@pytest.mark.parametrize("width", [120, 100, 90, 80, 76, 60, 40])
def test_no_column_vanishes_at_any_width(width: int) -> None:
    for summary in (make_summary(), four_decimals()):
        task = summary.tasks[0]
        summary = replace(summary, tasks=[task])
        text = shown(summary, width)
        assert max(map(len, text.splitlines())) <= width
        table = text.partition("ema and switch-ema help")[0]
        words = table.split()
        for row in make_rows(task, task.metrics[0]):
            assert row.method in words
            assert row.p in (*words, "-")
            assert {*row.last.split(), *row.verdict.split()} <= {*words}
        n = re.findall(r"(?:^  n: | )8\s*$", table, re.MULTILINE)
        assert len(n) == len(task.results["accuracy"])
        costs = text.partition("ost per seed")[2].partition("How verdicts")[0]
        assert len(re.findall(r" 8 *$", costs, re.M)) == 3


def test_below_the_width_of_the_table_there_is_a_block_per_method() -> None:
    text = shown(four_decimals(), 40)
    assert "switch-ema\n  accuracy (%), last epoch: " in text
    assert "  verdict: no difference larger than" in text


def test_a_table_folds_its_verdicts_before_it_is_given_up() -> None:
    text = shown(four_decimals(), 84)
    assert "[best epoch]" in text  # as in the narrow table, which blocks are without
    table = text.partition("ema and switch-ema help")[0]
    assert "no difference" not in table
    assert re.search(r" no .*\n.* difference", table)


def test_names_are_shown_as_they_are() -> None:
    text = without_spaces(shown(make_summary()))
    assert without_spaces(NASTY_TASK) in text
    assert without_spaces(NASTY_METHOD) in text
    assert "epoch18[/dim]<b>." in text


def test_control_characters_do_not_reach_the_terminal() -> None:
    task = replace(make_summary().tasks[0], problems=["\x1b[2J\rgone"])
    text = shown(replace(make_summary(), tasks=[task]))
    assert "\x1b" not in text
    assert "\\x1b[2J\\rgone" in text


def test_verdicts_problems_and_missing_cells_are_told() -> None:
    text = " ".join(shown(make_summary()).split())
    assert "ema and switch-ema help; lookahead hurts; no difference larger" in text
    assert "Problem: lookahead, seed 3" in text
    assert "2 trainings of this task have not been run yet" in text
    assert re.search(r"lookahead .* 7/8", text), "one seed diverged"


def test_verdicts_are_coloured() -> None:
    text = shown(make_summary(), colour=True)
    assert "\x1b[1;32mhelps" in text
    assert "\x1b[1;31mhurts" in text


def test_costs_are_apart_from_the_results() -> None:
    summary = make_summary()
    task = summary.tasks[0]
    slower = [replace(cost, train_seconds=99.0) for cost in task.costs]
    other = shown(replace(summary, tasks=[replace(task, costs=slower)]))
    same = shown(replace(summary, tasks=[task]))
    assert same.split("cost per seed")[0] == other.split("cost per seed")[0]
    assert "plain + ema + swa         12.3" in same
    assert "12.3" not in other


def test_one_seed_and_nothing_finished_can_be_printed() -> None:
    curves = {"plain": {0: [1.0, 2.0]}, "ema": {}}
    results = compare(curves, higher_is_better=True)
    task = make_task("tiny", {"plain": 0.0, "ema": 0.0})
    task = replace(
        task, metrics=task.metrics[:1], curves={"accuracy": curves}, costs=[]
    )
    task = replace(task, results={"accuracy": results})
    text = shown(replace(make_summary(), tasks=[task]))
    assert "undecided" in text
    assert "nan" not in text.replace("baseline", "")


@pytest.mark.parametrize("width", [80, 40])
def test_the_short_form_has_one_sentence_and_every_method(width: int) -> None:
    summary = make_summary()
    file = io.StringIO()
    print_findings(summary, Console(file=file, width=width))
    text = file.getvalue()
    assert max(map(len, text.splitlines())) <= width
    for task in summary.tasks:
        assert without_spaces(best_sentence(task)) in without_spaces(text)
        for row in make_rows(task, task.metrics[0]):
            assert row.last in text
    assert "How verdicts are reached" not in text
    assert "cost per seed" not in text


def test_the_short_form_of_one_task_fits_a_screen() -> None:
    summary = make_summary()
    file = io.StringIO()
    print_findings(
        replace(summary, tasks=summary.tasks[:1]), Console(file=file, width=80)
    )
    assert file.getvalue().count("\n") <= 18


def test_the_short_form_says_once_what_is_no_difference() -> None:
    gains = {"plain": 0.0, "ema": 0.0, "swa": 0.0, "lawa": 0.0}
    task = make_task("digits", gains, noise=0.1)
    console = Console(width=80, file=io.StringIO())
    print_findings(ComparisonSummary("run", [task], "{}"), console)
    text = console.file.getvalue()
    assert len(re.findall(r"^(ema|swa|lawa) .* no difference +8 *$", text, re.M)) == 3
    assert " ".join(text.split()).count("no difference larger than 0.5 points") == 1


def test_verdicts_that_skew_makes_doubtful_are_named() -> None:
    """The short form has no sentence of each method, which would say it."""
    gains = (0.31, 0.32, 0.34, 0.35, 0.3, 0.29, 0.33, -0.1)
    curves = {"plain": {seed: [float(seed)] for seed in range(8)}}
    for method, last in (("ema", gains[-1]), ("swa", 0.28)):
        own = enumerate((*gains[:-1], last))
        curves[method] = {seed: [seed + gain] for seed, gain in own}
    task = make_task("digits", {"plain": 0.0})
    results = compare(curves, higher_is_better=True)
    assert [r.verdict for r in results[1:]] == ["helps", "helps"]
    task = replace(
        task,
        curves={**task.curves, "accuracy": curves},
        results={**task.results, "accuracy": results},
    )
    console = Console(width=200, file=io.StringIO())
    print_findings(ComparisonSummary("run", [task], "{}"), console)
    assert (
        "The differences of ema from plain are skewed; with an adjustment for skew, p "
        "is not below 0.03." in console.file.getvalue()
    )


def test_a_plan_shows_the_whole_name_of_every_task_once() -> None:
    tasks = [f"classification:dataset=cifar10,network=deit-s,seed={n}" for n in "12"]
    cells = [
        Cell(task, None, Recipe(epochs=3), (method,), (0,))
        for task in tasks
        for method in ("plain", "switch-ema")
    ]
    file = io.StringIO()
    print_plan(cells, Console(file=file, width=60))
    column = [
        line.split("│")[1] for line in file.getvalue().splitlines() if "│" in line
    ]
    assert without_spaces("".join(column)) == "".join(tasks)
