"""Names of a package that are imported when they are used."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


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
