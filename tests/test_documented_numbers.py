"""Pages say what the evidence files say."""

import re
import shutil

import pytest

from switch_ema.bench.plan.task_snapshot import retrained
from switch_ema.bench.results.evidence import read_evidence
from tests.documented_numbers import FIGURES, ROOT, pages, with_numbers
from tests.test_cli import call

PUBLISHED = sorted((ROOT / "evidence").rglob("*.jsonl"))
RESULTS = [ROOT / "docs/results.md", *(ROOT / "docs/results").glob("*.md")]
ROWS = [file for file in PUBLISHED if file.parent.name != "evidence"]
LARGEST = 500_000
CHECKED = re.compile(
    r"^\s*```.*?^\s*```"  # code
    r"|`[^`\n]*`"
    r"|<!-- evidence/[^>;]+(?:\.jsonl|\*);[^>]*-->.*?<!-- end -->"  # quotes
    rf"|<!-- ({'|'.join(FIGURES)}) -->.*?<!-- end -->"
    r"|<!-- results: .*?<!-- /results -->",  # of benchmarks/results/*.json
    re.DOTALL | re.MULTILINE,
)
"""Parts of pages whose numbers another test checks, or that are no results."""
INTERVAL = re.compile(r"\[[-+\u2212]?[\d.]+,\s+[-+\u2212]?[\d.]+\]")
RANGE = "[0, 1]"
"""Of proportions; never a result."""
HISTORY = "docs/protocol.md"
"""Records looks whose values were not kept."""


def name(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", pages(), ids=name)
def test_quotes_are_what_the_evidence_says(page):
    text = page.read_text(encoding="utf-8")
    assert with_numbers(text) == text, "run make numbers"


def typed(text):
    """Return the intervals of a page that no test checks, with their lines."""
    rest = CHECKED.sub(lambda part: "\n" * part[0].count("\n"), text)
    return [
        f"line {rest.count(chr(10), 0, found.start()) + 1}: {found[0]}"
        for found in INTERVAL.finditer(rest)
        if found[0] != RANGE
    ]


@pytest.mark.parametrize("page", pages(), ids=name)
def test_no_line_begins_with_a_quote(page):
    # Markdown ends a paragraph before a line that begins with a comment.
    quotes = re.findall(
        r"^ *<!-- evidence.*<!-- end -->", page.read_text("utf-8"), re.M
    )
    assert not quotes


@pytest.mark.parametrize("page", pages(), ids=name)
def test_comments_do_not_split_the_cells_of_tables(page):
    comments = re.findall("<!--.*?-->", page.read_text("utf-8"), re.DOTALL)
    assert not [comment for comment in comments if "|" in comment]


@pytest.mark.parametrize("page", pages(), ids=name)
def test_no_interval_is_typed_by_hand(page):
    is_written = page in RESULTS  # by the test below
    if not is_written and page != ROOT / HISTORY:
        own = typed(page.read_text(encoding="utf-8"))
        assert not own, f"{name(page)}, quote from evidence/: {'; '.join(own)}"


def test_typed_intervals_are_found():
    text = """A gain of 0.4 [0.1,
0.7] in [0, 1], not `[1, 2]`, <!-- evidence/a.jsonl; a; b; gain -->
+1 [+0, +2]<!-- end -->, but -1 [-2.5, +0.5].

```text
[3, 4]
```
[5, 6]"""
    assert typed(text) == [
        "line 1: [0.1,\n0.7]",
        "line 3: [-2.5, +0.5]",
        "line 8: [5, 6]",
    ]


def test_result_pages_are_made_from_the_evidence(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for file in PUBLISHED:
        copy = tmp_path / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
    code, _, err = call(capsys, "reproduce", "--write-docs", "docs/results.md")
    assert (code, err) == (0, "")
    written = sorted((tmp_path / "docs").rglob("*.md"))
    assert len(written) > 1
    for page in written if ROWS else ():  # until then, pages of earlier runs stay
        own = ROOT / page.relative_to(tmp_path)
        assert own.read_text(encoding="utf-8") == page.read_text(encoding="utf-8"), (
            f"{own} differs; run make numbers"
        )


def test_this_version_trains_what_was_published():
    for file in PUBLISHED:
        found = read_evidence(file)
        changed = retrained(found.meta, found.config.tasks)
        assert not changed, f"{name(file)}: train {changed} again"


def test_evidence_files_are_small_and_name_no_machine():
    for file in PUBLISHED:
        text = file.read_text(encoding="utf-8")
        assert len(text) < LARGEST, f"{file} has {len(text)} characters"
        assert not re.search(r"/(home|root|tmp|work|Users)/", text), file
