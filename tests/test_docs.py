"""Every Python block of the documentation runs, page by page.

Blocks marked ``python peer`` use another library and run where it is installed.
"""

import ast
import importlib.util
import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from switch_ema._lazy import load_named
from switch_ema.cli import COMMANDS, parse

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
RUN_HERE = [page for page in PAGES if page.stem != "tutorial"]  # its notebook is run
BLOCK = re.compile(r"^```python( peer)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
IMPORT = re.compile(r"^\s*(?:from|import) (\w+)", re.MULTILINE)


SHELL = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^(?:\s*- )?(switch-ema .*)$", re.MULTILINE)
INLINE = re.compile(r"`(switch-ema [^`\n]+)`")


def can_import(code: str) -> bool:
    return all(importlib.util.find_spec(name) for name in IMPORT.findall(code))


@pytest.mark.parametrize("page", RUN_HERE, ids=lambda page: page.stem)
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


def test_the_notebook_is_the_tutorial_and_runs(tmp_path, monkeypatch):
    pytest.importorskip("lightning")
    sys.path.insert(0, str(ROOT / "docs" / "hooks"))
    try:
        from notebook import NOTEBOOK, PAGE, notebook_of
    finally:
        sys.path.pop(0)
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert text == notebook_of(PAGE.read_text(encoding="utf-8"))
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "tutorial"}
    for cell in json.loads(text)["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), cell["id"], "exec"), namespace)
    found: Any = namespace["found"]
    assert set(found.results) == {"plain", "ema", "switch-ema"}


def evaluations(code: str) -> list[tuple[int, bool]]:
    """Find blocks in which a model runs with its average, and whether each is safe."""
    found = []
    for block in (node for node in ast.walk(ast.parse(code)) if _averages(node)):
        assert isinstance(block, ast.With)
        calls = [node for part in block.body for node in ast.walk(part)]
        calls = [node for node in calls if isinstance(node, ast.Call)]
        if any(ast.unparse(call.func) == "model" for call in calls):
            items = ast.unparse(block).partition(":")[0]
            no_grad = "no_grad()" in items or "inference_mode()" in items
            found.append((block.lineno, no_grad and "model.eval()" in code))
    return found


def _averages(node: ast.AST) -> bool:
    return isinstance(node, ast.With) and any(
        ast.unparse(item.context_expr).endswith(".averaged()") for item in node.items
    )


def test_examples_evaluate_in_evaluation_mode_without_gradients():
    count = 0
    blocks = [(p, code) for p in PAGES for _, code in BLOCK.findall(p.read_text())]
    blocks += [(p, p.read_text()) for p in (ROOT / "examples").glob("**/*.py")]
    for page, code in blocks:
        for line, is_safe in evaluations(code):
            assert is_safe, f"{page.name}: {code.splitlines()[line - 1]}"
            count += 1
    assert count >= 9


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def commands() -> dict[str, str]:
    """Return the command lines of the pages and of the help, with where each is."""
    found: dict[str, str] = {}
    for page in PAGES:
        text = page.read_text()
        blocks = "".join(SHELL.findall(text)).replace("\\\n", " ")
        lines = COMMAND.findall(blocks) + INLINE.findall(text)
        found |= dict.fromkeys(lines, page.name)
    for name, where in COMMANDS.items():
        lines = COMMAND.findall(load_named(where).__doc__ or "")
        found |= dict.fromkeys(lines, f"switch-ema {name} --help")
    return found


@pytest.mark.parametrize(("command", "place"), commands().items(), ids=str)
def test_commands_can_be_typed(command, place):
    """They are parsed and not run: the command and its flags exist."""
    arguments = shlex.split(command, comments=True)[1:]
    if len(arguments) == 1 and arguments[0] in {*COMMANDS, "--help", "--version"}:
        return  # it is only named, or asks about the program itself
    try:
        parse(arguments)
    except SystemExit as left:  # after printing help
        assert left.code == 0, place
