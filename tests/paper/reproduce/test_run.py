"""Rows of the paper's tables: chosen, planned, trained, resumed and collected."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from switch_ema.bench import compare
from switch_ema.bench.errors import UsageError
from switch_ema.bench.execute.options import RunOptions
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.train import loop
from switch_ema.commands import reproduce
from switch_ema.paper import TABLES
from switch_ema.paper.reproduce import plan as planning
from switch_ema.paper.reproduce.collect import StoredRows
from switch_ema.paper.reproduce.estimate import measure_row_time
from switch_ema.paper.reproduce.plan import (
    plan_rows,
    select_rows,
    select_tables,
    table_folder,
)
from switch_ema.paper.reproduce.presets import RowSettings

OPTIONS = RunOptions(executor="inline", device="cpu", keep_checkpoints="none")
TABLE_3 = TABLES["table-3"]


@pytest.fixture
def tiny_rows(tiny, monkeypatch):
    """Every row is a second's training; that of DeiT-S fails."""

    def row_config(row, settings):
        task = f"{tiny}:fail=True" if row.name == "deit-s" else tiny
        methods = tuple(m for m in row.methods if m in ("plain", "ema", "switch-ema"))
        return CompareConfig(
            tasks=(task,),
            methods=methods,
            seeds=settings.seeds,
            epochs=settings.epochs,
        )

    monkeypatch.setattr(planning, "row_config", row_config)


def plan(out, *patterns, **more):
    return plan_rows([TABLE_3], patterns, RowSettings(**{"seeds": 2, **more}), out)


def train_rows(plans, options, console):
    """Train; what is stored is collected apart, as by a later command."""
    reproduce.train_rows(plans, options, console, StoredRows(Path("unused"), "small"))


def collect_rows(table, out, scale):
    return StoredRows(out, scale).of(table)


def quiet():
    return Console(file=io.StringIO(), width=120)


def test_tables_are_chosen_by_name_all_by_default():
    assert select_tables(()) == list(TABLES.values())
    assert select_tables(("table-3", "table-3")) == [TABLE_3]
    with pytest.raises(UsageError, match="unknown table 'table-x'; did you mean"):
        select_tables(("table-x",))


def test_rows_are_chosen_by_name_and_pattern():
    tables = [TABLES["table-2"], TABLE_3]
    chosen = select_rows(tables, ("resnet18", "swin-*"))
    assert [f"{table.name} {row.name}" for table, row in chosen] == [
        "table-2 swin-t-adamw",
        "table-3 resnet18",
        "table-3 swin-t",
        "table-3 swin-s",
    ]
    assert len(select_rows(tables, ())) == 27


def test_an_unknown_row_is_told_with_those_there_are():
    message = r"no row of table-3 matches 'resnet50'; the rows are vgg13-bn, resnet18,"
    with pytest.raises(UsageError, match=message):
        select_rows([TABLE_3], ("resnet18", "resnet50"))


def test_scales_have_folders_of_their_own():
    small, paper = (table_folder(Path("runs"), TABLE_3, s) for s in ("small", "paper"))
    assert small == Path("runs/reproduce-table-3")
    assert paper == Path("runs/reproduce-table-3-paper")


def test_a_row_is_trained_stored_and_collected(tiny_rows, tmp_path):
    plans = plan(tmp_path, "swin-t")
    train_rows(plans, OPTIONS, quiet())
    [found] = collect_rows(TABLE_3, tmp_path, "small")
    assert found.row is plans[0].row and found.config == plans[0].config
    results = found.task.results["error"]
    assert [r.method for r in results] == ["plain", "ema", "switch-ema"]
    assert all(r.last.n == 2 for r in results)
    assert collect_rows(TABLE_3, tmp_path, "paper") == []


def test_the_same_rows_again_train_nothing(tiny_rows, tmp_path, monkeypatch):
    train_rows(plan(tmp_path, "swin-t"), OPTIONS, quiet())

    def refuse(*arguments):
        raise AssertionError("something was trained again")

    monkeypatch.setattr(loop, "take_step", refuse)
    train_rows(plan(tmp_path, "swin-t"), OPTIONS, quiet())
    assert measure_row_time(plan(tmp_path, "swin-t")[0], OPTIONS) == 0


def test_a_row_that_was_interrupted_is_preliminary(tiny_rows, tmp_path, monkeypatch):
    """With Ctrl-C in the third of four trainings two are kept, and told."""
    step, calls = loop.take_step, 0

    def interrupted(*arguments):
        nonlocal calls
        calls += 1
        if calls == 2 * 12 + 3:  # 4 steps, 3 epochs
            raise KeyboardInterrupt
        return step(*arguments)

    monkeypatch.setattr(loop, "take_step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train_rows(plan(tmp_path, "swin-t"), OPTIONS, quiet())
    [found] = collect_rows(TABLE_3, tmp_path, "small")
    assert found.task.missing == 2
    assert [r.last.n for r in found.task.results["error"]] == [1, 1, 1]
    train_rows(plan(tmp_path, "swin-t"), OPTIONS, quiet())
    [found] = collect_rows(TABLE_3, tmp_path, "small")
    assert found.task.missing == 0


def test_a_row_is_one_line_of_progress_and_one_of_its_result(tiny_rows, tmp_path):
    console = quiet()
    train_rows(plan(tmp_path, "swin-t", "swin-s"), OPTIONS, console)
    lines = console.file.getvalue().splitlines()
    assert len(lines) == 4
    for number, name in ((1, "swin-t"), (2, "swin-s")):
        progress, result = lines[2 * number - 2 : 2 * number]
        assert progress.startswith(f"{number} of 2: table-3 {name}")
        assert "12/12" in progress  # 3 epochs of 2 trainings for 2 seeds
        pattern = (
            rf"{name}: plain \d\.\d ± \d\.\d, ema [+-]?\d\.\d+, "
            r"switch-ema [+-]?\d\.\d+, n = 2 \(\d+ s\)"  # never a false zero
        )
        assert re.fullmatch(pattern, result)
    assert (tmp_path / "reproduce-table-3" / "swin-t" / "report.html").is_file()


def test_a_row_that_is_done_has_its_result_alone(tiny_rows, tmp_path):
    train_rows(plan(tmp_path, "swin-t"), OPTIONS, quiet())
    console = quiet()
    train_rows(plan(tmp_path, "swin-t"), OPTIONS, console)
    (line,) = console.file.getvalue().splitlines()
    assert line.startswith("swin-t: plain ")


def test_rows_are_trained_where_the_options_say(tiny_rows, tmp_path, monkeypatch):
    train_cells, asked = compare.train_cells, []

    def noted(cells, context_of, jobs, progress, *, executor, address, **others):
        asked.append((executor, address))
        return train_cells(cells, context_of, jobs, progress)

    monkeypatch.setattr(compare, "train_cells", noted)
    pytest.importorskip("ray")
    on_ray = RunOptions(jobs=1, executor="ray", address="here:1", device="cpu")
    train_rows(plan(tmp_path, "swin-t"), on_ray, quiet())
    assert asked == [("ray", "here:1")]


def test_a_single_row_that_fails_ends_with_its_reason(tiny_rows, tmp_path):
    with pytest.raises(UsageError, match="lost key"):
        train_rows(plan(tmp_path, "deit-s"), OPTIONS, quiet())


def test_a_row_that_fails_does_not_stop_the_others(tiny_rows, tmp_path):
    console = quiet()
    message = r"1 of 2 rows could not be trained \(deit-s\); the reasons are above\."
    with pytest.raises(UsageError, match=message):
        train_rows(plan(tmp_path, "deit-s", "swin-t"), OPTIONS, console)
    assert "lost key" in console.file.getvalue()
    found = collect_rows(TABLE_3, tmp_path, "small")
    assert [one.row.name for one in found] == ["swin-t"]


def test_other_settings_are_refused_before_anything_is_trained(tiny_rows, tmp_path):
    train_rows(plan(tmp_path, "swin-s", epochs=1), OPTIONS, quiet())
    with pytest.raises(UsageError, match="swin-s holds this row with other settings"):
        plan(tmp_path, "swin-t", "swin-s", epochs=2)


def test_seeds_are_added_to_a_row(tiny_rows, tmp_path, monkeypatch):
    train_rows(plan(tmp_path, "swin-s", epochs=1), OPTIONS, quiet())
    more = plan(tmp_path, "swin-s", epochs=1, seeds=4)
    trained = []
    original = loop.Training.run
    monkeypatch.setattr(
        loop.Training,
        "run",
        lambda t, *more: trained.append(t.cell.seeds) or original(t, *more),
    )
    train_rows(more, OPTIONS, quiet())
    assert set(trained) == {(2,), (3,)}
    (found,) = collect_rows(TABLE_3, tmp_path, "small")
    assert found.config.seeds == 4
    assert [len(seeds) for seeds in found.task.curves["error"].values()] == 3 * [4]
    assert plan(tmp_path, "swin-s", epochs=1)[0].config.seeds == 4  # keeps them


def test_rows_get_seeds_until_they_are_decided(tiny, tmp_path, monkeypatch):
    def row_config(row, settings):
        return CompareConfig(
            tasks=(tiny,),
            methods=("plain", "ema"),
            seeds=settings.seeds,
            epochs=1,
            smallest_effect=100.0,
            until_decided=settings.until_decided,
            max_seeds=settings.max_seeds,
        )

    monkeypatch.setattr(planning, "row_config", row_config)
    (planned,) = plan(tmp_path, "resnet18", until_decided=True, max_seeds=16)
    assert planned.config.seeds == 12  # the first look
    console = Console(file=io.StringIO(), width=120)
    train_rows([planned], OPTIONS, console)
    assert ", n = 12 (" in console.file.getvalue()
    ((_, task),) = [
        (found.row, found.task) for found in collect_rows(TABLE_3, tmp_path, "small")
    ]
    assert task.sequential and task.looks == (12,) and task.unsettled() == []
    assert plan(tmp_path, "resnet18")[0].config.until_decided  # and stays so


def test_the_settings_of_rows_reach_the_comparison():
    settings = RowSettings(until_decided=True, max_seeds=20)
    config = planning.row_config(TABLE_3.rows[0], settings)
    assert config.until_decided and config.max_seeds == 20
