"""Every Python block of the documentation runs, page by page.

Blocks marked ``python peer`` use another library and run where it is installed.
"""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
BLOCK = re.compile(r"^```python( peer)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
IMPORT = re.compile(r"^\s*(?:from|import) (\w+)", re.MULTILINE)


def can_import(code: str) -> bool:
    return all(importlib.util.find_spec(name) for name in IMPORT.findall(code))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": page.stem}
    text = page.read_text()
    for match in BLOCK.finditer(text):
        peer, code = match.groups()
        if peer and not can_import(code):
            continue
        line = text[: match.start()].count("\n") + 1
        # Padding makes tracebacks show the line in the page.
        exec(compile("\n" * line + code, str(page), "exec"), namespace)


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"
