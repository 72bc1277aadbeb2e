"""Command lines without tyro: argparse options from the same declarations.

A command is a dataclass: its fields are the options, their docstrings the help. With
tyro missing, the commands that need torch alone are parsed here, with the same names.
"""

import argparse
import re
from collections.abc import Sequence
from dataclasses import MISSING, Field, fields
from inspect import cleandoc
from types import NoneType, SimpleNamespace, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NoReturn,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from switch_ema._lazy import find_class
from switch_ema.bench.errors import UsageError
from switch_ema.bench.text import unknown

T = TypeVar("T")
_POSITIONAL = "positional"

try:
    import tyro
except ModuleNotFoundError:
    _MARKERS: tuple[Any, ...] = (_POSITIONAL,)
else:
    _MARKERS = (_POSITIONAL, *get_args(tyro.conf.Positional[int])[1:])

if TYPE_CHECKING:
    Positional = Annotated[T, None]
else:
    Positional = Annotated[(T, *_MARKERS)]
"""Marks the type of an argument that is given without a name."""


def shown_as(metavar: str) -> Any:
    """Return the annotation for the name of an argument in the help."""
    if len(_MARKERS) == 1:
        return SimpleNamespace(metavar=metavar)
    return tyro.conf.arg(metavar=metavar)


def parse_plain(command: type[T], prog: str, arguments: Sequence[str]) -> T:
    """Parse arguments into a command.

    Raises:
        UsageError: an argument is missing, unknown or invalid.
    """
    parser = _Parser(
        prog=prog,
        description=_paragraphs(cleandoc(command.__doc__ or "")),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    source = find_class(f"{command.__module__}:{command.__name__}")
    hints = get_type_hints(command, include_extras=True)
    for field in fields(command):  # type: ignore[arg-type]
        text = source.documented.get(field.name, "") if source else ""
        _add(parser, field, hints[field.name], text)
    given = list(map(_hyphenated, arguments))
    for argument in given:
        name = argument.partition("=")[0]
        if name.startswith("--") and name not in (known := parser.names()):
            raise unknown("option", name, known)
    values = vars(parser.parse_intermixed_args(given))
    made = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    return command(**made)


class _Parser(argparse.ArgumentParser):
    """Raises an error in one sentence instead of printing the usage."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; {self.prog} --help lists the options.")

    def names(self) -> list[str]:
        """List the long names of all options."""
        return [name for name in self._option_string_actions if name.startswith("--")]


def _add(parser: _Parser, field: "Field[Any]", hint: Any, text: str) -> None:
    """Add a field of a command as an argument."""
    kind, *marks = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    has_default = field.default is not MISSING
    options: dict[str, Any] = {}
    many = get_origin(kind) is tuple
    if many:
        kind = get_args(kind)[0]
        options["nargs"] = "*"
    if get_origin(kind) in (Union, UnionType):
        kind = next(part for part in get_args(kind) if part is not NoneType)
    if get_origin(kind) is Literal:
        options["choices"] = get_args(kind)
    elif kind is bool:
        options["action"] = argparse.BooleanOptionalAction
    else:
        options["type"] = kind
        options["metavar"] = kind.__name__.upper()
    for mark in marks:
        if metavar := getattr(mark, "metavar", None):
            options["metavar"] = metavar.partition(" ")[0]  # argparse adds the dots
    if has_default:
        options["default"] = field.default
        if kind is not bool and field.default not in (None, "", ()):
            text += f" (default: {field.default})"
    options["help"] = text.replace("%", "%%")
    if _POSITIONAL in marks:
        parser.add_argument(field.name, **options)
    else:
        name = f"--{field.name.replace('_', '-')}"
        parser.add_argument(name, required=not has_default, **options)


def _paragraphs(text: str) -> str:
    r"""Join the lines of each paragraph, and keep the lines of a list.

    >>> _paragraphs("One\ntwo.\n\n- three\n- four")
    'One two.\n\n- three\n- four'
    """
    return re.sub(r"(?<!\n)\n(?!\n|- )", " ", text)


def _hyphenated(argument: str) -> str:
    """Write the name of an option with hyphens, as tyro accepts both.

    >>> _hyphenated("--first_seed=a_b"), _hyphenated("a_b")
    ('--first-seed=a_b', 'a_b')
    """
    name, equals, value = argument.partition("=")
    if not name.startswith("--"):
        return argument
    return f"{name.replace('_', '-')}{equals}{value}"
