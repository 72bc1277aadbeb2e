"""Every file, folder and function that docs/architecture.md names exists."""

import ast
import re
from itertools import pairwise
from pathlib import Path

import pytest
import tomllib

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text()
NAMED = sorted(
    set(re.findall(r"`([\w/]+(?:/|\.py|\.toml|\.yml))(?::([\w.]+))?`", PAGE))
)


def find(path: str) -> Path:
    found = [root / path for root in (ROOT / "src/switch_ema", ROOT)]
    return next((place for place in found if place.exists()), found[0])


def names_of(body: list[ast.stmt]) -> dict[str, list[ast.stmt]]:
    """Return what a module or class defines, each with its own body."""
    names: dict[str, list[ast.stmt]] = {}
    for node in body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            names[node.name] = node.body
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {t.id: [] for t in targets if isinstance(t, ast.Name)}
    return names


@pytest.mark.parametrize(("path", "name"), NAMED, ids=str)
def test_what_the_page_names_exists(path, name):
    place = find(path)
    assert place.exists()
    if name:
        body = ast.parse(place.read_text()).body
        for part in name.split("."):
            names = names_of(body)
            assert part in names
            body = names[part]


def test_the_page_names_every_folder():
    """A new folder of the bench or of the library needs a line in the drawing."""
    for package in ("averaging", "bench", "."):
        for folder in (ROOT / "src/switch_ema" / package).iterdir():
            if folder.is_dir() and (folder / "__init__.py").exists():
                assert f"{folder.name}/" in PAGE, folder


def test_the_drawing_is_the_contract_of_the_layers():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    layers = settings["importlinter"]["contracts"][0]["layers"]
    start = PAGE.index("    cli, commands/")
    lines = PAGE[start : PAGE.index("\n\n", start)].splitlines()
    drawing = "\n".join(line.strip().partition("  ")[0] for line in lines)
    places = []
    for layer in layers:
        names = [name.rpartition(".")[2] for name in layer.split(" : ")]
        found = [re.search(rf"\b{name}(/|\.py|,)", drawing) for name in names]
        places.append([match.start() for match in found if match])
        assert places[-1], f"{layer} is not in the drawing"
    for upper, lower in pairwise(places):
        assert max(upper) < min(lower)
