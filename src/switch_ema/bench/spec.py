"""Parses names with options, such as ``ema:decay=0.99,update_every=2``.

A task is a name with options or a class in a user's file. A method may change its
optimizer: ``ema@lr*0.5:decay=0.99``.
"""

import ast
import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import NoneType
from typing import Any

from switch_ema.bench.errors import UsageError

_IN_FILE = re.compile(r"(?P<path>.*\.py)(?::(?P<name>\w+)(?::(?P<options>.*))?)?")
_CHANGE = re.compile(r"(?P<option>[A-Za-z_]\w*)\s*(?P<sign>[=*])\s*(?P<value>.+)")
_COMMA = re.compile(r",(?=[A-Za-z_]\w*=)")
"""A comma before an option."""
KINDS: dict[type, str] = {
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    str: "text",
    NoneType: "None",
}
"""Names of option types in messages."""


READERS = "workers"
"""Option of tasks that read files: how many processes do so."""
SHARE = "f"
"""Factor that stands for the share of progress that a switch keeps."""
EPOCHS = "epochs"
"""A method's change of the length of its training, next to those of its optimizer."""
_SCALED = ("lr", EPOCHS)
"""Settings that can be varied by factors."""


@dataclass(frozen=True)
class Change:
    """A method's change of an optimizer setting or of its epochs: ``lr*0.5``."""

    option: str
    value: Any
    """A factor may be ``SHARE``."""
    is_factor: bool = False

    def __str__(self) -> str:
        """Format it as typed."""
        return f"{self.option}{'*' if self.is_factor else '='}{self.value}"


@dataclass(frozen=True)
class Spec:
    """A name and its options."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    changes: tuple[Change, ...] = ()
    """Changes of a method's optimizer and epochs, in order."""

    def __str__(self) -> str:
        """Format it as typed, with sorted options: equal specs give equal texts."""
        name = "@".join(filter(None, (self.name, ",".join(map(str, self.changes)))))
        if not self.options:
            return name
        given = (f"{key}={value}" for key, value in sorted(self.options.items()))
        return f"{name}:{','.join(given)}"

    def with_defaults(self, defaults: Mapping[str, Any]) -> "Spec":
        """Add default values for options that are not given."""
        return replace(self, options={**defaults, **self.options})


def wrappable(spec: str) -> str:
    """Return a name with options that a terminal can wrap between options.

    >>> wrappable("adamw:lr=1e-3,betas=(0.9,0.95)")
    'adamw:lr=1e-3, betas=(0.9,0.95)'
    """
    return _COMMA.sub(", ", spec)


def parse_spec(text: str) -> Spec:
    """Parse a name with options.

    Numbers, booleans, None and tuples are recognised; anything else is text.

    >>> parse_spec("ema:decay=0.99,buffers=copy").options
    {'decay': 0.99, 'buffers': 'copy'}
    >>> parse_spec("adamw:betas=(0.9,0.95),lr=1e-3").options
    {'betas': (0.9, 0.95), 'lr': 0.001}
    """
    name, _, rest = text.partition(":")
    return Spec(name.strip(), parse_options(rest, repr(text), "name:"))


def parse_options(text: str, where: str, before: str = "") -> dict[str, Any]:
    """Parse options without a name.

    Args:
        text: such as ``decay=0.99,buffers=copy``.
        where: what the options belong to, for messages.
        before: what is written before the options, for messages.

    >>> parse_options("workers=16,weights=r50.pth", "--set")
    {'workers': 16, 'weights': 'r50.pth'}
    """
    options = {}
    for part in _split(text):
        key, equals, value = part.partition("=")
        if not (equals and key.strip().isidentifier() and value.strip()):
            raise UsageError(
                f"{where}: options are written as {before}key=value,key=value, "
                f"got {part!r}."
            )
        options[key.strip()] = read_value(value.strip())
    return options


def parse_method_spec(text: str) -> Spec:
    """Parse a method with its changes of optimizer and epochs, and its options.

    >>> parse_method_spec("ema@lr*0.5:decay=0.9").changes
    (Change(option='lr', value=0.5, is_factor=True),)
    >>> str(parse_method_spec("ema@lr=0.1,lr*f"))
    'ema@lr=0.1,lr*f'
    """
    spec = parse_spec(text)
    name, at, rest = spec.name.partition("@")
    changes = tuple(_change(text, part.strip()) for part in _split(rest))
    if at and not changes:
        raise _wrong_change(text, rest)
    return replace(spec, name=name.strip(), changes=changes)


def _change(text: str, part: str) -> Change:
    found = _CHANGE.fullmatch(part)
    if found is None:
        raise _wrong_change(text, part)
    option, is_factor = found["option"], found["sign"] == "*"
    value = read_value(found["value"].strip())
    is_share = is_factor and option in _SCALED and value == SHARE
    must_be_positive = is_factor or option in _SCALED
    kinds = (int,) if option == EPOCHS and not is_factor else (int, float)
    is_positive = type(value) in kinds and 0 < value < math.inf
    if must_be_positive and not (is_positive or is_share):
        raise _wrong_change(text, part)
    return Change(option, value, is_factor)


def parse_variation(text: str) -> tuple[str, tuple[Any, ...]]:
    """Parse an option with several values.

    >>> parse_variation("lr=0.0125,0.05,0.2")
    ('lr', (0.0125, 0.05, 0.2))
    """
    option, _, rest = text.partition("=")
    values = tuple(dict.fromkeys(read_value(part.strip()) for part in _split(rest)))
    if not option.strip().isidentifier() or len(values) < 2:
        raise UsageError(
            f"{text!r}: expected an option with at least two different values, such as "
            "lr=0.0125,0.05,0.2."
        )
    return option.strip(), values


def parse_variations(text: str) -> dict[str, tuple[Any, ...]]:
    """Parse several options with their values; none for a setting without values.

    >>> parse_variations("lr=0.1,0.2,epochs=15,30")
    {'lr': (0.1, 0.2), 'epochs': (15, 30)}
    >>> parse_variations("lr,epochs")
    {'lr': (), 'epochs': ()}
    """
    groups: list[list[str]] = []
    for part in _split(text):
        starts = "=" in part or part.strip() in _SCALED
        if starts or not groups:
            groups.append([])
        groups[-1].append(part)
    found: dict[str, tuple[Any, ...]] = {}
    for group in groups or [[text]]:
        is_bare = len(group) == 1 and group[0].strip() in _SCALED
        option, values = (
            (group[0].strip(), ()) if is_bare else parse_variation(",".join(group))
        )
        if option in found:
            raise UsageError(f"{text!r}: {option} is given twice.")
        found[option] = values
    return found


def _wrong_change(text: str, part: str) -> UsageError:
    return UsageError(
        f"{text!r}: expected optimizer settings or epochs after @, such as lr=0.05, "
        f"lr*0.5, lr*{SHARE} or epochs*{SHARE}, with rates, factors and whole epochs "
        f"above 0, got {part!r}."
    )


def parse_task(text: str) -> Spec:
    """Parse a task's name, or file and class, with options.

    >>> parse_task("my/task.py:Wine:size=50")
    Spec(name='my/task.py:Wine', options={'size': 50}, changes=())
    """
    if is_script(text):
        return Spec(text)
    found = _IN_FILE.fullmatch(text)
    if found is None:
        return parse_spec(text)
    path, name, options = found["path"], found["name"] or "", found["options"]
    given = parse_spec(f"{name}:{options}").options if options else {}
    return Spec(f"{path}:{name}" if name else path, given)


SCRIPT = "script:"
"""Prefix of a task that is a user's command."""
SEED = "{seed}"
"""Placeholder for the seed in such a command."""
FOLDER = "{folder}"
"""Placeholder for an empty folder, one for each training."""


def is_script(task: str) -> bool:
    """Whether a task is a user's command."""
    return task.startswith(SCRIPT)


def command_of(
    task: str, seed: int | str = SEED, folder: Path | str = FOLDER
) -> list[str]:
    """Split a command into words, with seed and folder filled in.

    >>> command_of("script:python train.py --seed {seed} --out {folder}", 3, "here")
    ['python', 'train.py', '--seed', '3', '--out', 'here']
    """
    try:
        words = shlex.split(task.removeprefix(SCRIPT))
    except ValueError as error:
        raise UsageError(f"{task!r} cannot be split into words: {error}.") from None
    return [
        word.replace(SEED, str(seed)).replace(FOLDER, str(folder)) for word in words
    ]


def task_slug(*tasks: str) -> str:
    """Name a folder after tasks.

    >>> task_slug("my/task.py:Wine", "images:noise=0.3")
    'task-images-noise-0'
    """
    stems = [Path(_file_or_name(task)).stem for task in tasks]
    # Keeps letters of all alphabets.
    return re.sub(r"[\W_]+", "-", "-".join(stems)).strip("-")[:40] or "run"


def _file_or_name(task: str) -> str:
    if not is_script(task):
        return task.partition(".py:")[0]
    files = [word for word in command_of(task) if word.endswith(".py")]
    return [*files, "script"][0]


def is_file(spec: Spec) -> bool:
    """Whether a task is in a user's file rather than built in."""
    return file_of(spec) is not None


def file_of(spec: Spec) -> str | None:
    """Return the user's file as typed, or None for a built-in task."""
    found = None if is_script(spec.name) else _IN_FILE.fullmatch(spec.name)
    return None if found is None else found["path"]


def _split(text: str) -> list[str]:
    """Split at commas outside brackets."""
    return re.findall(r"(?:[^,([]|\([^)]*\)|\[[^]]*\])+", text)


def read_value(text: str) -> Any:
    """Parse a number, boolean, None or tuple; anything else is text."""
    try:
        return ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return text
