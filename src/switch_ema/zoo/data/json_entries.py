"""Reads JSON files entry by entry: large lists take much memory as Python objects."""

import json
import re
from collections.abc import Iterator
from typing import Any

_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\n\r]*")


def members(text: str) -> Iterator[tuple[str, int]]:
    """Yield the keys of a JSON object, and where in the text their values begin.

    Anything else than an object has none.

    >>> [(key, json.loads(text[at])) for text in ['{"a": 1, "b": 2}', "[]"]
    ...  for key, at in members(text)]
    [('a', 1), ('b', 2)]

    Raises:
        ValueError: The text is not JSON.
    """
    at = _skip_space(text, 0)
    if not text.startswith("{", at):
        _DECODER.raw_decode(text, at)
        return
    at = _skip_space(text, at + 1)
    while not text.startswith("}", at):
        key, at = _DECODER.raw_decode(text, at)
        at = _skip_space(text, _expect(":", text, _skip_space(text, at)))
        yield key, at
        at = _after(text, at)
        at = _next(text, at, "}")


def elements(text: str, begin: int) -> Iterator[Any]:
    """Yield the elements of the JSON list that begins at a position.

    >>> list(elements('{"a": [1, {"b": 2}]}', 6))
    [1, {'b': 2}]

    Raises:
        ValueError: The text is not JSON.
    """
    for value, _ in _elements(text, begin):
        yield value


def _elements(text: str, begin: int) -> Iterator[tuple[Any, int]]:
    """Yield the elements of a list, and where the text goes on after each."""
    at = _skip_space(text, _expect("[", text, begin))
    while not text.startswith("]", at):
        value, at = _DECODER.raw_decode(text, at)
        at = _next(text, at, "]")
        yield value, at


def _after(text: str, begin: int) -> int:
    """Return the position after a value, of which no more than an entry is kept."""
    if not text.startswith("[", begin):
        return _DECODER.raw_decode(text, begin)[1]
    at = _skip_space(text, begin + 1)
    for _, end in _elements(text, begin):
        at = end
    return _expect("]", text, at)


def _next(text: str, at: int, closing: str) -> int:
    """Return the position of the next entry, or of the closing bracket."""
    at = _skip_space(text, at)
    if text.startswith(closing, at):
        return at
    return _skip_space(text, _expect(",", text, at))


def _expect(character: str, text: str, at: int) -> int:
    if not text.startswith(character, at):
        raise json.JSONDecodeError(f"Expecting {character!r}", text, at)
    return at + 1


def _skip_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None  # it matches nothing as well
    return found.end()
