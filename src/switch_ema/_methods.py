"""Facts about the methods, read from source: listing them does not import torch."""

from dataclasses import dataclass
from functools import cache

from switch_ema._lazy import ClassSource, exported_names, find_class

_PACKAGES = ("switch_ema.averaging.methods", "switch_ema.averaging.contrib")
"""Packages that export methods, in the order of lists and tables."""


@dataclass(frozen=True)
class MethodFacts:
    """Facts about a method shown in lists, figures and pages."""

    name: str
    """The name that users type."""
    display_name: str
    """Its name in figures and pages."""
    colour: int
    """Index in the palette."""
    description: str
    """The first line of its docstring."""


@cache
def method_facts() -> dict[str, MethodFacts]:
    """Return the facts about every method by its name.

    >>> method_facts()["switch-ema"].display_name
    'Switch EMA'
    """
    found: dict[str, MethodFacts] = {}
    for package in _PACKAGES:
        for where in exported_names(package).values():
            if (source := find_class(where)) and "name" in source.attributes:
                facts = _as_facts(where, source)
                found[facts.name] = facts
    return found


def _as_facts(where: str, source: ClassSource) -> MethodFacts:
    try:
        name, display_name, colour = (
            source.attributes[key] for key in ("name", "display_name", "colour")
        )
    except KeyError as missing:
        raise LookupError(
            f"{where} needs a class attribute {missing.args[0]} with a literal value."
        ) from None
    return MethodFacts(name, display_name, colour, source.summary)
