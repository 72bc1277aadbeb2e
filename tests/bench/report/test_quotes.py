"""Numbers of pages that are computed from evidence files."""

import pytest

from switch_ema.bench.compare import run_comparison, summarize_run
from switch_ema.bench.errors import UsageError
from switch_ema.bench.execute.options import RunOptions
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.report.quotes import refreshed
from switch_ema.bench.results.evidence import publish
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
        config = CompareConfig(tasks=(TASK,), methods=methods, seeds=3, epochs=2)
        options = RunOptions(out=here, name="run", executor="inline", device="cpu")
        run = run_comparison(config, options).folder
        publish(run, here / "evidence/own.jsonl", "own")
    return here


def quote(parts, text="?"):
    return f"before <!-- evidence/own.jsonl | {parts} -->{text}<!-- end --> after"


def test_quotes_are_computed_and_stay(folder):
    (task,) = summarize_run(folder / "evidence/own.jsonl").tasks
    plain, ema, _ = task.results["error"]
    found = refreshed(quote(f"{TASK} | ema | gain"), folder)
    assert f"-->{ema.difference.mean:+.2f}"[:7] in found and "[" in found
    assert refreshed(found, folder) == found
    assert refreshed(quote(f"{TASK} | plain | n"), folder) == quote(
        f"{TASK} | plain | n", "3"
    )
    assert f"{ema.verdict}<!-- end" in refreshed(
        quote(f"{TASK} | ema | verdict"), folder
    )
    value = refreshed(quote(f"{TASK} | plain | value"), folder)
    assert f"-->{plain.last.mean:.1f}"[:6] in value and "±" in value
    other = refreshed(quote(f"{TASK} | plain | value | slope"), folder)
    assert other.partition("-->")[2] != value.partition("-->")[2]


def test_a_head_to_head_has_the_opposite_sign_the_other_way_round(folder):
    one, other = (
        refreshed(quote(f"{TASK} | {a} | gain over {b}"), folder).partition("-->")[2]
        for a, b in (("ema", "switch-ema"), ("switch-ema", "ema"))
    )
    assert {one[0], other[0]} == {"+", "-"} and one[1:4] == other[1:4]


def test_a_whole_table(folder):
    text = refreshed("<!-- evidence/own.jsonl | table --><!-- end -->", folder)
    assert text.count("| switch-ema |") >= 1 and text.endswith("<!-- end -->")
    assert refreshed(text, folder) == text


@pytest.mark.parametrize(
    "parts",
    [
        "moons | ema | gain",
        f"{TASK} | swa | gain",
        f"{TASK} | ema | glory",
        f"{TASK} | ema | gain over swa",
        f"{TASK} | plain | gain",
        f"{TASK} | ema | gain | speed",
        TASK,
    ],
)
def test_a_quote_of_nothing_is_refused(folder, parts):
    with pytest.raises(UsageError, match="names no task, method and number"):
        refreshed(quote(parts), folder)


def test_a_missing_file_is_refused(folder):
    with pytest.raises(UsageError, match=r"other\.jsonl"):
        refreshed("<!-- evidence/other.jsonl | table --><!-- end -->", folder)
