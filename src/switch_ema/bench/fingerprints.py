"""Fingerprints the files that a run's results depend on, to detect edits.

For a task in a user's file that is the file. A command may name its code in many ways:
``python train.py``, ``python -m pkg.train``, ``bash run.sh``, or a program of an
installed package. We parse its Python files for imports and its shell scripts for file
names; nothing is imported or run.
"""

import ast
import importlib.util
import json
import os
import re
import shutil
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha1
from pathlib import Path

from switch_ema.bench.spec import (
    FOLDER,
    SEED,
    command_of,
    file_of,
    is_script,
    parse_task,
)
from switch_ema.bench.text import counted, listed

LARGEST = 64 << 20
"""Files up to this many bytes are hashed; larger ones count by size and mtime."""

_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_INTERPRETER = re.compile(r"(python|pypy)[\d.]*|torchrun|accelerate|deepspeed")
_LAUNCHERS = {"torch", "accelerate", "deepspeed", "switch_ema"}
"""Packages that launch the user's code or that it imports, but never are that code."""
_SHELL_WORD = re.compile(r"[^\s;|&()<>\"'`]+")
_SYSTEM = (("/", "proc"), ("/", "sys"), ("/", "dev"))
_INSTALLED = {"site-packages", "dist-packages"}


@dataclass(frozen=True)
class ScriptFiles:
    """The files of a command that were found."""

    code: tuple[Path, ...]
    """Programs, scripts, and the modules that they import."""
    others: tuple[Path, ...]
    """Other files in the command, such as its configuration."""
    unseen: tuple[str, ...]
    """Warnings about files whose edits go unnoticed."""


def fingerprint(task: str) -> str:
    """Hash the user's current code; empty for built-in tasks."""
    if is_script(task):
        digests = [_digest(path) for path in files_of_script(task).code]
        return sha1("".join(digests).encode()).hexdigest() if digests else ""
    file = file_of(parse_task(task))
    path = None if file is None else Path(file).expanduser()
    if path is None or not path.is_file():
        return ""
    return sha1(path.read_bytes()).hexdigest()


def inputs_of(tasks: Iterable[str], seeds: Iterable[int]) -> dict[str, str]:
    """Fingerprint the other files in commands, by name as typed.

    They are not part of a run's name, as a script may create such a file itself.
    """
    found: dict[str, str] = {}
    for task in filter(is_script, tasks):
        paths = list(files_of_script(task).others)
        for word in filter(lambda word: SEED in word, command_of(task)):
            for seed in seeds:
                paths += _files_in(word.replace(SEED, str(seed)))
        found |= {str(path): _digest(path) for path in paths}
    return found


def changed_inputs(stored: str | None) -> list[str]:
    """List the files that have changed.

    Args:
        stored: earlier result of :func:`inputs_of`, as JSON.
    """
    before: Mapping[str, str] = json.loads(stored or "{}")
    return [
        name
        for name, digest in before.items()
        if not Path(name).is_file() or _digest(Path(name)) != digest
    ]


def described(task: str) -> str:
    """Describe the code of a task for messages."""
    if not is_script(task):
        return str(file_of(parse_task(task)))
    first, *others = map(str, files_of_script(task).code)
    if len(others) <= 3:
        return listed([first, *others], "or")
    return f"{first} or one of {counted(len(others), 'other file')} of its code"


def watched(task: str) -> list[str]:
    """Describe which edits of a command's files are detected, and which are not."""
    files = files_of_script(task)
    seen = []
    if files.code:
        seen.append(f"Watched for edits: {_enumerated([*files.code, *files.others])}.")
    return [*seen, *files.unseen]


def _enumerated(paths: Sequence[Path]) -> str:
    names = [str(path) for path in paths[:4]]
    rest = len(paths) - len(names)
    return listed([*names, counted(rest, "other file")] if rest else names)


def files_of_script(task: str) -> ScriptFiles:
    """Find the files of a command."""
    return _Search(command_of(task)).found()


class _Search:
    """Finds the files of one command, without running anything."""

    def __init__(self, words: Sequence[str]) -> None:
        self._code: dict[Path, None] = {}
        self._others: dict[Path, None] = {}
        self._unseen: list[str] = []
        self._folders: dict[str, None] = {}
        self._words = words
        self._roots = [Path(), *map(Path, _python_path(words))]
        self._read(words)
        if words and os.sep not in words[0]:
            self._read_program(words[0])

    def found(self) -> ScriptFiles:
        unseen = list(self._unseen)
        if self._folders:
            unseen.append(f"Edits in {listed(self._folders)} are not detected.")
        if not self._code:
            unseen.append(
                f"Found no code of the command {' '.join(self._words)}, so edits are "
                "not detected; choose another --name after an edit."
            )
        return ScriptFiles(tuple(self._code), tuple(self._others), tuple(unseen))

    def _read(self, words: Sequence[str]) -> None:
        starts_modules = False
        for index, word in enumerate(words):
            before = words[index - 1] if index else ""
            if _INTERPRETER.fullmatch(Path(word).name):
                starts_modules = True
            elif before in ("-m", "--module") and _MODULE.fullmatch(word):
                self._read_module(word, starts_modules)
                starts_modules = False
            elif starts_modules and re.fullmatch(r"-m\w[\w.]*", word):
                self._read_module(word[2:], True)
                starts_modules = False
            elif re.search(r"\s", word):  # a quoted command, as after bash -c
                self._read(_SHELL_WORD.findall(word))
            else:
                for path in _files_in(word):
                    self._read_file(path)
                    starts_modules = starts_modules and path not in self._code
                self._read_folder(word, is_run=starts_modules)

    def _read_folder(self, word: str, *, is_run: bool) -> None:
        if FOLDER in word or not _is(Path.is_dir, Path(word)):
            return
        main = Path(word) / "__main__.py"
        if is_run and main.is_file():
            self._read_python(main, (main.parent,))
        elif word not in (os.curdir, os.pardir):
            self._folders[word] = None

    def _read_file(self, path: Path) -> None:
        if _is_python(path):
            self._read_python(path, (path.parent,))
        elif _is_shell(path):
            if path not in self._code:
                self._code[path] = None
                self._unseen.append(
                    f"{path} starts programs: edits are detected only in the files "
                    "that it names and in their imports."
                )
                self._read(_SHELL_WORD.findall(_text(path)))
        else:
            self._others[path] = None

    def _read_module(self, name: str, is_sure: bool) -> None:
        if name.partition(".")[0] in _LAUNCHERS:
            return
        for files, folders in (_find(name, self._roots), _find_installed(name)):
            main = [f / "__main__.py" for f in folders if (f / "__main__.py").is_file()]
            if main or (files and not folders):
                for path in [*files, *main]:
                    self._read_python(path)
                return
        if is_sure:
            self._unseen.append(
                f"The module {name} was not found, so its edits are not detected; "
                "choose another --name after an edit."
            )

    def _read_program(self, name: str) -> None:
        """Follow the imports of a program of an installed package."""
        where = shutil.which(name)
        if where and not _INTERPRETER.fullmatch(name) and _is_python(Path(where)):
            for module in _imports_of(Path(where)):
                for file in self._imported(module, Path(where), self._roots):
                    self._read_python(file)

    def _read_python(self, path: Path, roots: Sequence[Path] = ()) -> None:
        """Add a file and all of the user's files that it imports."""
        waiting = [path]
        while waiting:
            path = waiting.pop()
            if path in self._code:
                continue
            self._code[path] = None
            for name in _imports_of(path):
                waiting += self._imported(name, path, [*roots, *self._roots])

    def _imported(self, name: str, path: Path, roots: Sequence[Path]) -> Sequence[Path]:
        """Return the user's files that an import executes."""
        module = name.lstrip(".")
        level = len(name) - len(module)
        if level:
            base = path.parent.joinpath(*[os.pardir] * (level - 1))
            return _find(module, [base])[0]
        top = module.partition(".")[0]
        if top in _LAUNCHERS:
            return ()
        if here := _find(module, roots)[0]:
            return here
        if top in sys.stdlib_module_names:
            return ()
        return [file for file in _find_installed(module)[0] if _is_own(file)]


def _files_in(word: str) -> list[Path]:
    """Return the file that a word names, also after an equals sign."""
    values = filter(None, (word, word.partition("=")[2]))
    return [path for path in map(Path, values) if _is(_is_plain_file, path)]


def _is_plain_file(path: Path) -> bool:
    """Whether a path is a file outside /proc, /sys and /dev, which may be endless."""
    return path.is_file() and path.resolve().parts[:2] not in _SYSTEM


def _is(check: Callable[[Path], bool], path: Path) -> bool:
    try:
        return check(path)
    except (OSError, ValueError):  # too long, or not a valid name
        return False


def _python_path(words: Iterable[str]) -> Iterator[str]:
    """Yield the folders of PYTHONPATH, in the command or the environment."""
    for word in words:  # env PYTHONPATH=src python ...
        if word.startswith("PYTHONPATH="):
            yield from filter(None, word.partition("=")[2].split(os.pathsep))
    yield from filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))


def _find(name: str, roots: Iterable[Path]) -> tuple[list[Path], list[Path]]:
    """Find the files that ``import name`` executes, including parent packages.

    Returns:
        The files and, for a package, its folders. The last parts of the name may be
        attributes of a module.
    """
    files: list[Path] = []
    parents = list(roots)
    for index, part in enumerate(filter(None, name.split("."))):
        folders = []
        for parent in parents:
            package, module = parent / part / "__init__.py", parent / f"{part}.py"
            if package.is_file():
                files.append(package)
                folders = [package.parent]
                break
            if module.is_file():
                return [*files, module], []
            if (parent / part).is_dir():  # a namespace package
                folders.append(parent / part)
        if not folders:
            return (files, parents) if index else ([], [])
        parents = folders
    return files, parents


def _find_installed(name: str) -> tuple[list[Path], list[Path]]:
    """Find a module among the installed packages, without importing it."""
    try:
        spec = importlib.util.find_spec(name.partition(".")[0])
    except (ImportError, ValueError, AttributeError):
        return [], []
    paths = list(spec.submodule_search_locations or ()) if spec is not None else []
    if spec is not None and not paths and spec.origin is not None:
        paths = [spec.origin]
    return _find(name, [Path(path).parent for path in paths])


def _is_own(path: Path) -> bool:
    """Whether a file is the user's code rather than a library's."""
    stdlib = Path(sysconfig.get_paths()["stdlib"])
    return not _INSTALLED & set(path.parts) and stdlib not in path.parents


def _is_python(path: Path) -> bool:
    return path.suffix == ".py" or b"python" in _first_line(path)


def _is_shell(path: Path) -> bool:
    return path.suffix in (".sh", ".bash", ".zsh") or b"sh" in _first_line(path)


def _first_line(path: Path) -> bytes:
    """Return the shebang line of a file, if it has one."""
    try:
        with path.open("rb") as file:
            start = file.read(200)
    except OSError:
        return b""
    return start.partition(b"\n")[0] if start.startswith(b"#!") else b""


def _text(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(LARGEST).decode(errors="replace")


def _imports_of(path: Path) -> Sequence[str]:
    """List the modules that a Python file imports, relative ones with leading dots."""
    try:
        state = path.stat()
        return _read_imports(path, state.st_mtime_ns, state.st_size)
    except OSError:
        return ()


@lru_cache(maxsize=4096)
def _read_imports(path: Path, changed: int, size: int) -> tuple[str, ...]:
    del changed  # only part of the cache key, so that an edited file is read again
    try:
        tree = ast.parse(_text(path) if size <= LARGEST else "")
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    names: dict[str, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= dict.fromkeys(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            dot = "." if node.module else ""
            # A name imported from a package may be a submodule.
            names |= dict.fromkeys(f"{base}{dot}{alias.name}" for alias in node.names)
    return tuple(name for name in names if name.strip(".*"))


def _digest(path: Path) -> str:
    try:
        state = path.stat()
        if state.st_size > LARGEST:
            return f"{state.st_size}:{state.st_mtime_ns}"
        return sha1(path.read_bytes()).hexdigest()
    except OSError:
        return ""
