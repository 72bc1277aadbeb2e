"""`switch-ema reproduce all`: one run that resumes, one page, and a budget."""

import json
from dataclasses import replace

import pytest

from switch_ema.bench.compare import summarize_run
from switch_ema.bench.execute.options import RunOptions
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.train import loop
from switch_ema.commands import reproduce_all as command
from switch_ema.paper import TABLES
from switch_ema.paper.reproduce import full_run, plan
from switch_ema.paper.reproduce.presets import RowSettings
from tests.bench.conftest import TINY_TASK
from tests.test_cli import call

RUN = ("reproduce", "all", "--executor", "inline", "--device", "cpu", "--seeds", "2")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A paper of two tables, whose rows train for less than a second."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    (tmp_path / "tiny.py").write_text(TINY_TASK)
    tables = {
        name: replace(TABLES[name], rows=TABLES[name].rows[rows])
        for name, rows in (("table-3", slice(2)), ("table-5", slice(2, 4)))
    }
    for module in (full_run, command, plan):
        monkeypatch.setattr(module, "TABLES", tables)
    rows = {
        name: dict.fromkeys((row.name for row in table.rows), 10.0)
        for name, table in tables.items()
    }
    rows["table-5"]["mae"] = 5.0
    monkeypatch.setattr(full_run, "SECONDS", rows)
    monkeypatch.setattr(full_run, "_speed", lambda device: 1.0)

    def row_config(row, settings):
        methods = tuple(m for m in row.methods if m in ("plain", "ema", "switch-ema"))
        return CompareConfig(
            tasks=("tiny.py:Tiny",), methods=methods, seeds=settings.seeds, epochs=1
        )

    monkeypatch.setattr(plan, "row_config", row_config)
    return tmp_path / "runs" / "reproduce-all"


def states(folder):
    stored = json.loads((folder / "all.json").read_text())
    return {f"{row['part']} {row['row']}": row["state"] for row in stored["rows"]}


def found(folder, table, row):
    summary = summarize_run(folder / f"reproduce-{table}" / row)
    return summary.tasks[0].results["error"]


def test_every_row_of_every_table_ends_on_one_page(folder, capsys):
    code, out, err = call(capsys, *RUN)
    assert err == "" and code == 0
    assert set(states(folder).values()) == {"done"} and len(states(folder)) == 4
    page = (folder / "report.html").read_text()
    for text in (
        "Overview",
        "Table 5: ",
        "Table 3: ",
        "#table-5",
        ">Table 5</a>",
        "83.48",
        "2 of 2",
        "All tables together, by primary metric. Switch EMA over plain",
        '<tr class="group">',
    ):
        assert text in page
    assert "table-5 mae: plain" in out and "4/4 rows" in out


def test_a_budget_chooses_rows_and_says_what_it_left_out(folder, capsys):
    code, out, _ = call(capsys, *RUN, "--budget", "70s")
    assert code == 0
    # The cheapest row of each table with 3 seeds, and with the rest 5 of the first.
    assert states(folder) == {"table-3 vgg13-bn": "done", "table-5 mae": "done"}
    assert [row.last.n for row in found(folder, "table-3", "vgg13-bn")] == [5] * 3
    assert "Left out of table-5: simmim." in out
    assert "Left out of table-3: resnet18." in out
    page = (folder / "report.html").read_text()
    assert "allowed 2 rows with their seeds; 2 rows did not fit." in page
    assert "Not run with the current recipes: simmim." in page
    assert "reproduce all --scale small --seeds 2 --budget 70s" in page


def test_what_was_stopped_goes_on_with_the_same_rows(folder, capsys, monkeypatch):
    step, calls = loop.take_step, []

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) == 45:  # in the second row; the first has 40
            raise KeyboardInterrupt
        return step(*arguments)

    monkeypatch.setattr(loop, "take_step", interrupted)
    code, out, err = call(capsys, *RUN, "--budget", "70s")
    assert code == 130 and "run the same command to continue" in err
    assert states(folder) == {"table-3 vgg13-bn": "done", "table-5 mae": "waiting"}
    assert "Not trained yet: table-5 mae" in (folder / "report.html").read_text()
    monkeypatch.setattr(loop, "take_step", step)
    monkeypatch.setattr(full_run, "choose_rows", None)  # they are not chosen again
    code, out, _ = call(capsys, *RUN, "--budget", "70s")
    assert code == 0 and "1 of them done" in out and "vgg13-bn: plain" not in out
    assert set(states(folder).values()) == {"done"}
    code, _, err = call(capsys, *RUN, "--budget", "80s")
    assert code == 2 and "was started with other settings (budget: 70 s" in err


def test_a_dry_run_stores_nothing(folder, capsys):
    code, out, _ = call(capsys, *RUN, "--budget", "300s", "--dry-run")
    assert code == 0 and "4 rows of 2 of 2 tables" in out
    assert not folder.exists()


def test_rows_without_time_left_are_skipped_and_told(folder, capsys):
    options = RunOptions(executor="inline", device="cpu")
    run = full_run.open_full_run(RowSettings(seeds=2), 300.0, options, folder)
    run.rows[0].state, run.rows[0].seconds = "done", 280.0
    full_run.save_full_run(run, folder)
    code, out, _ = call(capsys, *RUN, "--budget", "300s")
    assert code == 0 and "no time left" in out
    assert list(states(folder).values())[1:] == ["skipped"] * 3


def test_the_shortest_epoch_tells_how_fast_a_machine_is(monkeypatch):
    declared = full_run.SECONDS["table-3"]["wrn28-10"]
    taken = iter([3 * declared, 1.5 * declared, 2 * declared])
    monkeypatch.setattr(full_run, "measure_whole_row", lambda *_: next(taken))
    assert full_run._speed("cpu") == 1.5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*RUN, "--rows", "mae"), "all includes every row of every table"),
        (("reproduce", "all", "table-5"), "do not combine it with other tables"),
        ((*RUN, "--budget", "soon"), "budget must be a time such as 90s, 30min or 2h"),
        ((*RUN, "--budget", "1h", "--scale", "paper"), "--budget needs --scale small"),
        (("reproduce", "table-5", "--budget", "1h"), "--budget is for `switch-ema re"),
    ],
)
def test_mistakes_are_one_sentence(folder, capsys, arguments, message):
    code, _, err = call(capsys, *arguments)
    assert code == 2 and message in err and err.count("\n") == 1


def test_a_damaged_state_is_told(folder, capsys):
    folder.mkdir(parents=True)
    (folder / "all.json").write_text('{"rows": 3}')
    code, _, err = call(capsys, *RUN)
    assert code == 2 and "all.json is damaged" in err


def test_every_row_of_the_paper_has_a_price():
    for table, row in full_run.all_rows():
        assert full_run.SECONDS[table.name][row.name] > 0
