"""Method and seed of a log, inferred from its path."""

import glob
import os
import re
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

from switch_ema.bench.errors import UsageError
from switch_ema.bench.logs.reading import as_log, find_logs, without_checkpoint

_SEED = re.compile(r"seed[-_= ]?(\d+)", re.IGNORECASE)
_NUMBER = re.compile(
    r"[-_. ]?(?:seed|version|run|fold|trial|rep)[-_= ]?(\d+)|(?:^|[-_. ])(\d+)$",
    re.IGNORECASE,
)
"""A number that distinguishes trainings of one method: labelled, or at the end."""


def group_logs(arguments: Sequence[str]) -> dict[str, list[Path]]:
    """Group the arguments by method.

    ``NAME=PATTERN`` names the method. Otherwise it is the first path component that
    differs, without seed numbers: plain and ema for ``plain/seed-0.csv`` and
    ``ema/seed-0.csv``. A folder means all logs in it.

    Raises:
        UsageError: there are no logs, or a file does not exist.
    """
    typed: list[tuple[str, Path]] = []
    for argument in arguments:
        name, is_named, pattern = argument.partition("=")
        if not is_named or os.path.exists(argument):
            name, pattern = "", argument
        typed += [(name, path) for path in _expanded(pattern)]
    if not typed:
        raise UsageError("name the logs of two methods, as in plain/*.csv ema/*.csv.")
    names = _methods([path for name, path in typed if not name])
    groups: dict[str, list[Path]] = {}
    for name, path in dict.fromkeys(typed):
        groups.setdefault(name or names[path], []).append(path)
    return {method: sorted(own, key=_natural) for method, own in groups.items()}


def pair_logs(logs: Mapping[str, Sequence[Path]]) -> tuple[dict[Path, int], str]:
    """Assign each log the number that pairs it with logs of other methods.

    This is the seed in its path; failing that, the number that distinguishes the
    trainings of a method, if all methods have the same ones; otherwise its position.

    Returns:
        The number of each log, and a phrase that says where it comes from.

    Raises:
        UsageError: two logs of one method have the same seed, or logs paired by order
            differ in number between methods.
    """
    paths = list(dict.fromkeys(path for own in logs.values() for path in own))
    parts = dict(zip(paths, _parts(paths), strict=True))
    seeds = {path: _last(_SEED, parts[path]) for path in paths}
    named = {path: seed for path, seed in seeds.items() if seed is not None}
    if len(named) == len(paths):
        for method, own in logs.items():
            _refuse_twice(method, own, named)
        return named, "by the seeds in their names"
    numbers = {path: _last(_NUMBER, parts[path]) for path in paths}
    known = {path: number for path, number in numbers.items() if number is not None}
    if len(known) == len(paths):
        sets = [{known[path] for path in own} for own in logs.values()]
        is_one_each = all(
            len(found) == len(own)
            for found, own in zip(sets, logs.values(), strict=True)
        )
        if is_one_each and all(found == sets[0] for found in sets):
            return known, "by the numbers in their names"
    counts = {method: len(own) for method, own in logs.items()}
    if len(set(counts.values())) > 1:
        numbers_of = ", ".join(f"{n} of {method}" for method, n in counts.items())
        raise UsageError(
            "logs without a seed in their names are paired by order, so every method "
            f"needs the same number of logs, got {numbers_of}."
        )
    order = {path: place for own in logs.values() for place, path in enumerate(own)}
    return order, "by their order"


def _refuse_twice(method: str, own: Sequence[Path], seeds: Mapping[Path, int]) -> None:
    first: dict[int, Path] = {}
    for path in own:
        if seeds[path] in first:
            raise UsageError(
                f"{method} has two logs with seed {seeds[path]}: "
                f"{first[seeds[path]]} and {path}."
            )
        first[seeds[path]] = path


def _expanded(argument: str) -> list[Path]:
    """Expand a path, folder or pattern into logs."""
    found: list[Path] = []
    for name in sorted(glob.glob(argument, recursive=True)) or [argument]:
        path = Path(name)
        if path.is_dir():
            found += find_logs(path)
        elif path.is_file():
            found.append(as_log(path))
        else:
            raise UsageError(f"{argument}: no such log.")
    if not found:
        raise UsageError(f"{argument}: no log in this folder.")
    return found


def _methods(paths: Sequence[Path]) -> dict[Path, str]:
    """Name each log after the first path component that differs."""
    stripped = [tuple(map(_without_number, own)) for own in _parts(paths)]
    for column in zip_longest(*stripped, fillvalue=""):
        if len(set(column)) > 1:
            return dict(zip(paths, (name or "logs" for name in column), strict=True))
    return dict.fromkeys(paths, "logs")


def _parts(paths: Sequence[Path]) -> list[tuple[str, ...]]:
    """Split paths below their common folder, without file extensions."""
    full = [path.absolute() for path in paths]
    if not full:
        return []
    common = os.path.commonpath([path.parent for path in full])
    named = [path.with_suffix("") if path.is_file() else path for path in full]
    return [without_checkpoint(path.relative_to(common).parts) for path in named]


def _without_number(part: str) -> str:
    """Strip a seed number.

    >>> [_without_number(p) for p in ("plain-seed3", "version_0", "ema_2", "resnet50")]
    ['plain', '', 'ema', 'resnet50']
    """
    return _NUMBER.sub("", part).strip("-_. ")


def _last(pattern: re.Pattern[str], parts: Sequence[str]) -> int | None:
    found = [match for part in parts for match in pattern.finditer(part)]
    if not found:
        return None
    return int(next(group for group in found[-1].groups() if group))


def _natural(path: Path) -> list[tuple[int, str]]:
    """Natural sort key: seed 2 before seed 10."""
    pieces = re.split(r"(\d+)", str(path))
    return [(int(p), "") if p.isdecimal() else (-1, p) for p in pieces]
