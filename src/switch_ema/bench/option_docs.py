"""Describes the options of tasks and methods, as their classes document them.

The meaning of an option is in the section ``Args`` of the docstring of its class, or of
a base. Its allowed values are in its type hint, or in a class attribute with the name
of the option in the plural, such as ``networks``.
"""

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

from switch_ema.bench.spec import KINDS
from switch_ema.bench.text import listed

_SECTION = re.compile(r"^Args:\n(?P<body>(?:[ ]{4}.*\n?|\n)*)", re.MULTILINE)
_ENTRY = re.compile(r"^[ ]{4}(?P<name>\w+): (?P<text>.*(?:\n[ ]{5,}.*)*)", re.MULTILINE)
_MARKUP = re.compile(r":\w+:`~?(?:[\w.]*\.)?(\w+)`|``(.*?)``", re.DOTALL)


@dataclass(frozen=True)
class Option:
    """One option, as lists show it."""

    name: str
    default: str
    """As typed; empty if the option must be given."""
    meaning: str
    """Empty if its class does not describe it."""
    values: str
    """What may be typed; empty if the meaning says it."""


def meanings_of(kind: type) -> dict[str, str]:
    """Return the meaning of each argument that a class or its bases describe.

    >>> from switch_ema import SwitchEMA
    >>> meanings_of(SwitchEMA)["switch_stop"]
    'switching stops after this'
    """
    found: dict[str, str] = {}
    for one in kind.__mro__:
        section = _SECTION.search(inspect.cleandoc(one.__dict__.get("__doc__") or ""))
        for entry in _ENTRY.finditer(section["body"] if section else ""):
            text = _MARKUP.sub(lambda m: m[1] or m[2], entry["text"])
            found.setdefault(entry["name"], " ".join(text.split()).rstrip("."))
    return found


def values_of(kind: type, option: str) -> str:
    """Return the values that an option of a class may have, where that is known.

    >>> from switch_ema import SwitchEMA
    >>> values_of(SwitchEMA, "optimizer_state"), values_of(SwitchEMA, "flat")
    ('keep or reset', 'True or False')
    """
    choices = getattr(kind, f"{option}s", None)
    if isinstance(choices, tuple) and all(isinstance(one, str) for one in choices):
        return listed(choices, "or")
    try:
        hint = get_type_hints(kind.__init__).get(option)  # type: ignore[misc]
    except (NameError, TypeError):  # a user's annotations may not resolve
        return ""
    parts = list(_parts(hint))
    literals = [str(v) for p in parts if get_origin(p) is Literal for v in get_args(p)]
    if literals:
        return listed(literals, "or")
    if all(part in KINDS for part in parts):
        words = [KINDS[part] for part in parts if part not in (str, type(None))]
        return " or ".join(words)
    return ""


def _parts(hint: Any) -> Iterator[Any]:
    """Yield the members of a union, also of nested ones."""
    if get_origin(hint) is not Literal and (members := get_args(hint)):
        for member in members:
            yield from _parts(member)
    else:
        yield hint
