"""Numbers of pages that are computed from evidence files."""

import re
from statistics import fmean

import pytest

from switch_ema.bench.compare import run_comparison, summarize_run
from switch_ema.bench.errors import UsageError
from switch_ema.bench.execute.options import RunOptions
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.report.first_screen import first_screen
from switch_ema.bench.report.numbers import digits_within, fixed
from switch_ema.bench.report.quotes import refreshed
from switch_ema.bench.report.rounding import rounding_head_to_head, rounding_sheets
from switch_ema.bench.results.evidence import publish
from switch_ema.bench.stats.course import at_best_epochs
from switch_ema.bench.stats.paired import head_to_head
from tests.bench.conftest import TINY_TASK

TASK = "tiny.py:Tiny"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A repository with one evidence file."""
    here = tmp_path_factory.mktemp("quotes")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        (here / "tiny.py").write_text(TINY_TASK)
        methods = ("plain", "ema", "switch-ema")
        config = CompareConfig(
            tasks=(TASK,), methods=methods, seeds=4, epochs=3, deploy="int8,int4"
        )
        options = RunOptions(out=here, name="run", executor="inline", device="cpu")
        run = run_comparison(config, options).folder
        publish(run, here / "evidence/own.jsonl", "own")
    return here


def quote(parts, text="?"):
    return f"before <!-- evidence/own.jsonl; {parts} -->{text}<!-- end --> after"


def test_quotes_are_computed_and_stay(folder):
    (task,) = summarize_run(folder / "evidence/own.jsonl").tasks
    plain, ema, _ = task.results["error"]
    found = refreshed(quote(f"{TASK}; ema; gain"), folder)
    assert f"-->{ema.difference.mean:+.2f}"[:7] in found and "[" in found
    assert refreshed(found, folder) == found
    assert refreshed(quote(f"{TASK}; plain; n"), folder) == quote(
        f"{TASK}; plain; n", "4"
    )
    assert f"{ema.verdict}<!-- end" in refreshed(quote(f"{TASK}; ema; verdict"), folder)
    value = refreshed(quote(f"{TASK}; plain; value"), folder)
    assert f"-->{plain.last.mean:.2f}" in value and "±" in value
    other = refreshed(quote(f"{TASK}; plain; value; slope"), folder)
    assert other.partition("-->")[2] != value.partition("-->")[2]


def test_a_head_to_head_has_the_opposite_sign_the_other_way_round(folder):
    one, other = (
        refreshed(quote(f"{TASK}; {a}; gain over {b}"), folder).partition("-->")[2]
        for a, b in (("ema", "switch-ema"), ("switch-ema", "ema"))
    )
    assert {one[0], other[0]} == {"+", "-"} and one[1:4] == other[1:4]


def test_a_whole_table(folder):
    text = refreshed("<!-- evidence/own.jsonl; table --><!-- end -->", folder)
    assert text.count("| switch-ema |") >= 1 and text.endswith("<!-- end -->")
    assert refreshed(text, folder) == text


def test_best_epochs_are_those_of_the_first_screen(folder):
    text = refreshed(quote(f"{TASK}; ema; best gain over switch-ema"), folder)
    (task,) = summarize_run(folder / "evidence/own.jsonl").tasks
    best = at_best_epochs(task.curves["error"], higher_is_better=False)
    found = head_to_head(best, "ema", "switch-ema", higher_is_better=False)
    assert f"-->{fixed(found.mean, digits_within(found), '+')} [" in text


def test_changes_by_rounding_are_those_of_the_report(folder):
    (task,) = summarize_run(folder / "evidence/own.jsonl").tasks
    for sheet, kind in zip(rounding_sheets(task), task.roundings, strict=True):
        for row in sheet.rows:
            text = refreshed(quote(f"{TASK}; {row[0]}; change by {kind}"), folder)
            plain = text.partition("-->")[2].replace("[+", "[").replace(", +", ", ")
            assert plain.startswith(row[3].partition(" near ties")[0])


def test_changes_by_rounding_are_compared_seed_by_seed(folder):
    (task,) = summarize_run(folder / "evidence/own.jsonl").tasks
    before, after = task.curves["error"], task.curves["error (int4)"]
    found = rounding_head_to_head(task, "ema", "plain", "int4")
    assert found.mean == pytest.approx(  # lower is better
        fmean(
            (after["plain"][s][-1] - before["plain"][s][-1])
            - (after["ema"][s][-1] - before["ema"][s][-1])
            for s in before["ema"]
        )
    )
    text = refreshed(quote(f"{TASK}; ema; change by int4 over plain"), folder)
    mean = float(re.search(r"-->([-+][\d.]+)", text)[1])
    assert mean == pytest.approx(found.mean, abs=0.2 * (found.high - found.low))


def lines_of(text):
    return [line for line in text.splitlines() if line.startswith("|")]


def test_a_table_of_tasks(folder):
    (task,) = summarize_run(folder / "evidence/own.jsonl").tasks
    parts = """tasks;
        plain = plain: value;
        EMA, % = ema: gain;
        itself = ema: gain over ema;
        slope = switch-ema: value in slope
    """
    text = refreshed(quote(parts), folder)
    assert refreshed(text, folder) == text
    *_, header, rule, row = lines_of(text)
    assert header == "| task | plain | EMA, % | itself | slope |"
    assert rule == "| --- | --- | --- | --- | --- |"
    name, value, gain, itself, _ = (cell.strip() for cell in row.strip("|").split("|"))
    assert name == f"`{TASK}`" and itself == ""
    assert value in refreshed(quote(f"{TASK}; plain; value"), folder)
    is_bold = task.results["error"][1].verdict in ("helps", "hurts")
    assert gain.startswith("**") == is_bold
    mean, low, high = map(float, re.findall(r"[-+][\d.]+", gain))
    found = task.results["error"][1].difference
    assert mean == pytest.approx(found.mean, abs=0.1 * (high - low))
    assert low == pytest.approx(found.low, abs=0.1 * (high - low))


def test_a_table_of_methods(folder):
    parts = f"methods of {TASK}; n = n; over plain = gain; int4 = change by int4"
    *_, plain, ema, switch = lines_of(refreshed(quote(parts), folder))
    assert plain.startswith("| plain | 4 |  |") and ema.startswith("| ema | 4 | ")
    change = refreshed(quote(f"{TASK}; switch-ema; change by int4"), folder)
    assert switch.split(" | ")[-1].strip("*| ") in change


def test_rows_of_several_files_follow_each_other(folder):
    file = "evidence/own.jsonl"
    text = f"<!-- {file}, {file}; tasks; n = ema: n --><!-- end -->"
    assert lines_of(refreshed(text, folder))[-1] == f"| `{TASK}` | 4 |"


def test_the_first_screen(folder):
    (task,) = summarize_run(folder / "evidence/own.jsonl").tasks
    text = refreshed(quote(f"first screen of {TASK}"), folder)
    assert [line[2:] for line in text.splitlines() if line.startswith("- ")] == [
        line for _, line in first_screen(task)
    ]


@pytest.mark.parametrize(
    "parts",
    [
        f"{TASK}; ema; best gain",
        f"{TASK}; ema; change by bf16",
        f"{TASK}; ema; change by int4 over swa",
        f"methods of {TASK}; n",
        f"methods of {TASK}",
        "methods of moons; n = n",
        "tasks; n = swa: n",
        "tasks; n = n",
        "first screen of moons",
        f"first screen of {TASK}; gain",
        "moons; ema; gain",
        f"{TASK}; swa; gain",
        f"{TASK}; ema; glory",
        f"{TASK}; ema; gain over swa",
        f"{TASK}; plain; gain",
        f"{TASK}; ema; gain; speed",
        TASK,
    ],
)
def test_a_quote_of_nothing_is_refused(folder, parts):
    with pytest.raises(UsageError, match="names no task, method and number"):
        refreshed(quote(parts), folder)


def test_a_missing_file_is_refused(folder):
    with pytest.raises(UsageError, match=r"other\.jsonl"):
        refreshed("<!-- evidence/other.jsonl; table --><!-- end -->", folder)
