"""Names with options, as they are typed: ``ema:decay=0.99,update_every=2``.

A task is a name with options, too, or a class in a file of the user's.
"""

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha1
from pathlib import Path
from types import NoneType
from typing import Any

from switch_ema.bench.errors import UsageError

IN_FILE = re.compile(r"(?P<path>.*\.py)(?::(?P<name>\w+)(?::(?P<options>.*))?)?")
KINDS: dict[type, str] = {
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    str: "text",
    NoneType: "None",
}
"""What the values of options are called in messages."""


@dataclass(frozen=True)
class Spec:
    """A name and its options."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """Spell it as it would be typed, options sorted, so that equal means equal."""
        if not self.options:
            return self.name
        given = (f"{key}={value}" for key, value in sorted(self.options.items()))
        return f"{self.name}:{','.join(given)}"

    def with_defaults(self, defaults: Mapping[str, Any]) -> "Spec":
        """Add the options that are not given."""
        return Spec(self.name, {**defaults, **self.options})


def parse_spec(text: str) -> Spec:
    """Read a name with options.

    Numbers, booleans, None and tuples are recognised; anything else is text.

    >>> parse_spec("ema:decay=0.99,buffers=copy").options
    {'decay': 0.99, 'buffers': 'copy'}
    >>> parse_spec("adamw:betas=(0.9,0.95),lr=1e-3").options
    {'betas': (0.9, 0.95), 'lr': 0.001}
    """
    name, _, rest = text.partition(":")
    options = {}
    for part in _split(rest):
        key, equals, value = part.partition("=")
        if not (equals and key.strip().isidentifier() and value.strip()):
            raise UsageError(
                f"{text!r}: options are written as name:key=value,key=value, "
                f"got {part!r}."
            )
        options[key.strip()] = _value(value.strip())
    return Spec(name.strip(), options)


def parse_task(text: str) -> Spec:
    """Read a task's name, or file and class, with options.

    >>> parse_task("my/task.py:Wine:size=50")
    Spec(name='my/task.py:Wine', options={'size': 50})
    """
    found = IN_FILE.fullmatch(text)
    if found is None:
        return parse_spec(text)
    path, name, options = found["path"], found["name"] or "", found["options"]
    given = parse_spec(f"{name}:{options}").options if options else {}
    return Spec(f"{path}:{name}" if name else path, given)


def is_file(spec: Spec) -> bool:
    """Tell a task in the user's file from one of ours."""
    return file_of(spec) is not None


def file_of(spec: Spec) -> str | None:
    """Return the user's file as it was typed, or None for one of our tasks."""
    found = IN_FILE.fullmatch(spec.name)
    return None if found is None else found["path"]


def fingerprint(task: str) -> str:
    """Hash the user's file as it is now; nothing of one of our tasks."""
    file = file_of(parse_task(task))
    path = None if file is None else Path(file).expanduser()
    if path is None or not path.is_file():
        return ""
    return sha1(path.read_bytes()).hexdigest()


def _split(text: str) -> list[str]:
    """Split at commas outside of brackets."""
    return re.findall(r"(?:[^,([]|\([^)]*\)|\[[^]]*\])+", text)


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return text
