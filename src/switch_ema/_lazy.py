"""Lazy imports, and class facts read from source, for lists without torch."""

import ast
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).parent


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for a package that imports a name on first use.

    A package can then export both computation and drawing; using only the former does
    not import matplotlib.

    Args:
        package: name of the package.
        homes: for each name, the module of the package that defines it.
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return find


def load_named(name: str) -> Any:
    """Return a class that a registry names as ``package.module:Class``.

    >>> load_named("switch_ema.averaging.methods.ema:EMA").name
    'ema'
    """
    module, _, class_name = name.partition(":")
    return getattr(import_module(module), class_name)


@dataclass(frozen=True)
class ClassSource:
    """Facts about a class, read from its source without importing it."""

    summary: str
    """The first line of its docstring."""
    attributes: dict[str, Any]
    """Class attributes whose values are literals."""
    documented: dict[str, str]
    """Docstrings below annotated attributes, each as one line."""


@cache
def find_class(name: str) -> ClassSource | None:
    """Read one of our classes, named as ``package.module:Class``, from its source.

    Returns:
        None if the name is not a class, but a function, say.

    >>> find_class("switch_ema.averaging.methods.ema:EMA").attributes["name"]
    'ema'
    """
    module, _, class_name = name.partition(":")
    for node in _parse(_source(module)).body:
        if isinstance(node, ast.ClassDef) and node.name == class_name:
            summary = (ast.get_docstring(node) or "").partition("\n")[0]
            literals, documented = _literals(node.body), _documented(node.body)
            return ClassSource(summary, dict(literals), dict(documented))
    return None


def describe_named(name: str) -> str:
    """Return the first line of the docstring of one of our classes, without importing.

    >>> describe_named("switch_ema.zoo.tasks.toy.two_d:Moons")
    "Two noisy half-moons that interlock; 50 labelled points (the paper's toy)."
    """
    source = find_class(name)
    if source is None:
        raise LookupError(f"{name} is not a class.")
    return source.summary


@cache
def exported_names(package: str) -> dict[str, str]:
    """Return the names in ``__all__`` of one of our packages, without importing it.

    Returns:
        For each name, where it is defined, as ``package.module:Class``.

    >>> exported_names("switch_ema.averaging.methods")["EMA"]
    'switch_ema.averaging.methods.ema:EMA'
    """
    body = _parse(_source(package)).body
    homes = {
        alias.asname or alias.name: f"{node.module}:{alias.name}"
        for node in body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    return {name: homes[name] for name in dict(_literals(body))["__all__"]}


def _source(module: str) -> Path:
    path = _PACKAGE.joinpath(*module.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _literals(body: list[ast.stmt]) -> Iterator[tuple[str, Any]]:
    """Yield each name that is assigned a literal, with its value."""
    for node in body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            # Other values are unknown without running the code.
            with suppress(ValueError):
                yield node.targets[0].id, ast.literal_eval(node.value)


def _documented(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    """Yield each annotated name that a docstring follows, with the docstring."""
    for node, text in pairwise(body):
        match node, text:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(words))),
            ):
                yield name, " ".join(words.split())
