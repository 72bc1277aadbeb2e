"""Classes that a registry names as ``package.module:Class`` instead of importing them.

A list of what there is can then be printed without importing torch.
"""

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parent


def load_named(name: str) -> Any:
    """Import the module and return the class.

    >>> load_named("switch_ema.averaging.methods.ema:EMA").name
    'ema'
    """
    module, _, class_name = name.partition(":")
    return getattr(import_module(module), class_name)


def describe_named(name: str) -> str:
    """Return the first line of the docstring of a class of ours, without importing it.

    >>> describe_named("switch_ema.bench.tasks.toy.two_d:Moons")
    "Two noisy half-moons that interlock; 50 labelled points (the paper's toy)."
    """
    module, _, class_name = name.partition(":")
    path = PACKAGE.joinpath(*module.split(".")[1:]).with_suffix(".py")
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name == class_name:
            return (ast.get_docstring(node) or "").partition("\n")[0]
    raise LookupError(f"{path} has no class {class_name}.")
