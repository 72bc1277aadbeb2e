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
    # Each trainer's callback has the name that its users look for.
    del classes["SwitchEMACallback"]
    assert not {name: paths for name, paths in classes.items() if len(paths) > 1}


def test_names_that_only_their_own_module_uses_are_private():
    root = SOURCE.parents[1]
    words: dict[str, set[str]] = {}
    for top in USERS:
        paths = root.joinpath(top)
        for path in [paths] if paths.is_file() else paths.rglob("*"):
            if path.suffix in (".py", ".md", ".html") and path.is_file():
                words[str(path)] = set(re.findall(r"\w+", path.read_text("utf-8")))
    counts = Counter(word for found in words.values() for word in found)
    lonely = []
    for path, tree in modules().items():
        public = defined(tree)
        used = {name: node for name, node in public.items() if counts[name] > 1}
        # A type that a public signature names is part of what others use.
        known = set().union(*(named_types(node) for node in used.values()))
        lonely += [f"{path}: {name}" for name in public if name not in {*used, *known}]
    assert not lonely


def named_types(node: ast.stmt) -> set[str]:
    """The names in the annotations and bases of a public definition."""
    parts: list[ast.expr | None] = []
    for one in [node, *(node.body if isinstance(node, ast.ClassDef) else ())]:
        if isinstance(one, ast.FunctionDef):
            arguments = one.args
            given = [*arguments.args, *arguments.kwonlyargs]
            given += [one for one in (arguments.vararg, arguments.kwarg) if one]
            parts += [one.returns, *(each.annotation for each in given)]
        elif isinstance(one, ast.ClassDef):
            parts += one.bases
        elif isinstance(one, ast.AnnAssign):
            parts.append(one.annotation)
    text = " ".join(ast.unparse(part) for part in parts if part is not None)
    return set(re.findall(r"\w+", text))


def test_a_short_file_has_more_than_one_importer():
    importers = Counter(name for tree in modules().values() for name in imported(tree))
    short = [
        path
        for path in modules()
        if not path.endswith(("__init__.py", "__main__.py", "registry.py"))
        and not path.startswith("zoo/tasks/")  # one file for each task, however short
        and len((SOURCE / path).read_text("utf-8").splitlines()) < SMALLEST
        and importers[path.removesuffix(".py")] <= 1
        and not is_offered_by_its_package(path)
        and "_deprecation" not in imported(modules()[path])  # an old name
    ]
    assert not short


def is_offered_by_its_package(path: str) -> bool:
    package = f"{path.rpartition('/')[0]}/__init__.py".removeprefix("/")
    return path.removesuffix(".py") in imported(modules()[package])
