"""Computes the numbers of pages from evidence/: ``python -m tests.documented_numbers``.

Writes docs/results.md, its pages and its figure, and refreshes the quotes of all other
pages (``switch_ema.bench.report.quotes``). A test fails where a page differs.
"""

import json
import re
from functools import cache
from pathlib import Path

from switch_ema.bench.report.quotes import refreshed
from switch_ema.cli import main
from switch_ema.paper import TABLES
from switch_ema.paper.reproduce.collect import StoredRows
from switch_ema.paper.show.overview import (
    OverviewRow,
    overview_counts,
    overview_rows,
    overview_sheet,
)
from switch_ema.paper.show.table_section import markdown_table
from tests.analysis.boundary import published as boundary
from tests.analysis.sharpness import published as sharpness
from tests.doctor import faults

ROOT = Path(__file__).parents[1]
FIGURES = {
    "evidence/boundary.json": boundary.figures,
    "evidence/doctor.json": faults.figures,
    "evidence/sharpness.json": sharpness.figures,
}
"""What computes the figures of the evidence that is no comparison."""
_FIGURES = re.compile(
    rf"(?P<start><!-- (?P<file>{'|'.join(map(re.escape, FIGURES))}) -->).*?"
    r"(?P<end><!-- end -->)",
    re.DOTALL,
)
_ROWS = re.compile(
    r"(?P<start><!-- evidence/table-\*; (?P<what>[^>]+?) -->).*?"
    r"(?P<end><!-- end -->)",
    re.DOTALL,
)
"""All rows of the paper's tables: "rows" for their table, "counts over RIVAL"
for verdicts on Switch EMA; ", over-trains" behind it leaves out other rows."""


def pages() -> list[Path]:
    """Return the pages that may quote evidence."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def with_numbers(text: str) -> str:
    """Return a page with all its numbers computed again."""
    return _ROWS.sub(_about_rows, _FIGURES.sub(_figures, refreshed(text, ROOT)))


def _figures(found: re.Match[str]) -> str:
    results = json.loads((ROOT / found["file"]).read_text(encoding="utf-8"))
    return f"{found['start']}\n\n{FIGURES[found['file']](results)}\n\n{found['end']}"


@cache
def _rows() -> list[OverviewRow]:
    stored = StoredRows(ROOT / "runs", "small", ROOT / "evidence")
    return [*overview_rows(TABLES.values(), stored)]


def _about_rows(found: re.Match[str]) -> str:
    what, _, course = found["what"].partition(", ")
    if what == "rows":
        sheet = overview_sheet(_rows(), course or None)
        text = f"\n\n{markdown_table(sheet)}\n\n"
    else:
        rival = what.removeprefix("counts over ")
        text = overview_counts(_rows(), rival, course or None)
    return f"{found['start']}{text}{found['end']}"


def write() -> None:
    """Write all numbers; run it in the root of the repository."""
    main(["reproduce", "--write-docs", "docs/results.md"])
    for page in pages():
        text = page.read_text(encoding="utf-8")
        new = with_numbers(text)
        if new != text:
            page.write_text(new, encoding="utf-8")
            print(f"Refreshed: {page.relative_to(ROOT)}")


if __name__ == "__main__":
    write()
