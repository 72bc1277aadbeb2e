"""Names that are imported when they are used: a list of them needs no torch."""

import ast
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).parent


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Make a package's ``__getattr__``, which imports a name from its module.

    So a package can offer computing and drawing beside each other, and who only
    computes does not import matplotlib.

    Args:
        package: the package's name.
        homes: for each name the module of the package that defines it.
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


def describe_named(name: str) -> str:
    """Return the first line of the docstring of a class of ours, without importing it.

    >>> describe_named("switch_ema.zoo.tasks.toy.two_d:Moons")
    "Two noisy half-moons that interlock; 50 labelled points (the paper's toy)."
    """
    module, _, class_name = name.partition(":")
    path = _PACKAGE.joinpath(*module.split(".")[1:]).with_suffix(".py")
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name == class_name:
            return (ast.get_docstring(node) or "").partition("\n")[0]
    raise LookupError(f"{path} has no class {class_name}.")
