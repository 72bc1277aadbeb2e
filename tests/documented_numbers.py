"""Computes the numbers of pages from evidence/: ``python -m tests.documented_numbers``.

Writes docs/results.md, its pages and its figure, and refreshes the quotes of all other
pages (``switch_ema.bench.report.quotes``). A test fails where a page differs.
"""

from pathlib import Path

from switch_ema.bench.report.quotes import refreshed
from switch_ema.cli import main

ROOT = Path(__file__).parents[1]


def pages() -> list[Path]:
    """Return the pages that may quote evidence."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def write() -> None:
    """Write all numbers; run it in the root of the repository."""
    main(["reproduce", "--write-docs", "docs/results.md"])
    for page in pages():
        text = page.read_text(encoding="utf-8")
        new = refreshed(text, ROOT)
        if new != text:
            page.write_text(new, encoding="utf-8")
            print(f"Refreshed: {page.relative_to(ROOT)}")


if __name__ == "__main__":
    write()
