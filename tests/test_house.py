"""What keeps the code findable: names that mean one thing, files worth opening."""

import ast
import re
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "switch_ema"
USERS = ("src", "tests", "docs", "benchmarks", "examples", "README.md")
SMALLEST = 40
"""Lines; a shorter file with one importer belongs to that importer."""


@cache
def modules() -> dict[str, ast.Module]:
    return {
        path.relative_to(SOURCE).as_posix(): ast.parse(path.read_text("utf-8"))
        for path in sorted(SOURCE.rglob("*.py"))
    }


def defined(tree: ast.Module) -> dict[str, ast.stmt]:
    """The public names that a module defines itself."""
    found: dict[str, ast.stmt] = {}
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found[node.name] = node
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    found[target.id] = node
    return {name: node for name, node in found.items() if not name.startswith("_")}


def imported(tree: ast.Module) -> set[str]:
    """The modules that a module imports, as paths below the package."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{one.name}" for one in node.names)]
        elif isinstance(node, ast.Import):
            names = [one.name for one in node.names]
        else:
            continue
        found.update(name for name in names if name.startswith("switch_ema."))
    return {name.removeprefix("switch_ema.").replace(".", "/") for name in found}


def test_no_two_public_classes_have_one_name():
    classes = defaultdict(list)
    for path, tree in modules().items():
        for name, node in defined(tree).items():
            if isinstance(node, ast.ClassDef):
                classes[name].append(path)
    assert not {name: paths for name, paths in classes.items() if len(paths) > 1}


def test_names_that_only_their_own_module_uses_are_private():
    root = SOURCE.parents[1]
    words: dict[str, Counter[str]] = {}
    for top in USERS:
        paths = root.joinpath(top)
        for path in [paths] if paths.is_file() else paths.rglob("*"):
            if path.suffix in (".py", ".md", ".html") and path.is_file():
                text = path.read_text("utf-8")
                words[str(path)] = Counter(re.findall(r"\w+", text))
    lonely = []
    for path, tree in modules().items():
        own = str(SOURCE / path)
        lonely += [
            f"{path}: {name}"
            for name in defined(tree)
            if not any(name in words[other] for other in words if other != own)
        ]
    assert not lonely


def test_a_short_file_has_more_than_one_importer():
    importers = Counter(name for tree in modules().values() for name in imported(tree))
    short = [
        path
        for path in modules()
        if not path.endswith(("__init__.py", "__main__.py", "registry.py"))
        and len((SOURCE / path).read_text("utf-8").splitlines()) < SMALLEST
        and importers[path.removesuffix(".py")] <= 1
    ]
    assert not short
