"""Finds a task's class by name or in the user's file, and checks its options."""

import ast
import importlib
import importlib.util
import inspect
import re
import shlex
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from hashlib import sha1
from pathlib import Path
from types import ModuleType
from typing import Any, Union, get_args, get_origin, get_type_hints

from switch_ema.bench.errors import UsageError
from switch_ema.bench.fingerprints import changed_inputs, described, fingerprint
from switch_ema.bench.option_docs import Option, meanings_of, values_of
from switch_ema.bench.spec import (
    FOLDER,
    KINDS,
    READERS,
    SCRIPT,
    SEED,
    Spec,
    file_of,
    is_script,
    parse_task,
)
from switch_ema.bench.stacking.tasks import stack_tasks
from switch_ema.bench.task import Metric, Recipe, SeedBatchTask, Task
from switch_ema.bench.text import listed, unknown

_REGISTRY = "switch_ema.zoo.tasks.registry"
"""Module with the named tasks; a string, as the engine imports no particular task."""

_ZOO = "switch_ema.zoo"
_PARSERS = {"argparse", "click", "fire", "hydra", "simple_parsing", "typer", "tyro"}
"""Libraries that parse the options of a script."""

_NO_TASKS = "it has no class that derives from switch_ema.bench.task.Task"


def registered_tasks() -> Mapping[str, str]:
    """Return the named tasks: name -> module and class."""
    tasks: Mapping[str, str] = importlib.import_module(_REGISTRY).TASKS
    return tasks


def import_task(name: str) -> type[Task]:
    """Import the class of a named task."""
    found: type[Task] = importlib.import_module(_REGISTRY).import_task(name)
    return found


def check_packages(task: str) -> None:
    """Refuse a named task that lacks a package, before anything is trained."""
    task_class, spec = load_task_class(task)
    if spec.name in registered_tasks():
        defaults = {key: one.default for key, one in options_of(task_class).items()}
        registry = importlib.import_module(_REGISTRY)
        registry.check_packages(spec.name, {**defaults, **spec.options})


def check_unchanged(task: str, sources: str, inputs: str | None = None) -> None:
    """Refuse a task whose files have changed since the run started.

    Args:
        task: the task to check.
        sources: fingerprints of the code of all tasks.
        inputs: fingerprints of a script's other input files, as JSON.
    """
    found = fingerprint(task)
    if found and found not in sources.split():
        raise UsageError(
            f"{described(task)} was edited during the run, and results of both "
            "versions must not be mixed; undo the edit, or start a new run."
        )
    if changed := changed_inputs(inputs):
        raise UsageError(
            f"{listed(changed)} changed during the run, and results of both versions "
            "must not be mixed; undo the change, or start a new run. If the script "
            f"writes there, let it write to {FOLDER}."
        )


def _load_from_file(shown: str, name: str) -> type[Task]:
    """Import the user's file and return the task class."""
    try:
        path = Path(shown).expanduser().resolve()
        is_there = path.is_file()
    except (OSError, RuntimeError, ValueError):  # a symlink loop, or an invalid name
        is_there = False
    if not is_there:
        if any(char.isspace() for char in shown):
            command = shown if SEED in shown else f"{shown} --seed {SEED}"
            raise UsageError(
                f'{shown}: no such file; a command is --script "{command}".'
            )
        raise UsageError(f"{shown}: no such file.")
    if (hint := _as_script(path, shown)) is not None:
        raise UsageError(hint)
    module = _import(path, shown, path.stat().st_mtime_ns)
    tasks = {k: v for k, v in vars(module).items() if _is_task(v, module)}
    if not name:
        complete = [key for key, task in tasks.items() if not inspect.isabstract(task)]
        candidates = complete or list(tasks)
        if len(candidates) > 1:
            choices = listed([f"{shown}:{key}" for key in candidates], "or")
            raise UsageError(f"{shown} has several tasks; write {choices}.")
        name = candidates[0] if candidates else ""
    found = getattr(module, name, None) if name else None
    if not (inspect.isclass(found) and issubclass(found, Task)):
        there = f"its tasks are {', '.join(tasks)}" if tasks else _NO_TASKS
        wanted = f"there is no task {name!r}; " if name else ""
        raise UsageError(f"{shown}: {wanted}{there}.")
    missing = sorted(getattr(found, "__abstractmethods__", ()))
    if missing:
        raise UsageError(f"{shown}: {name} must define {', '.join(missing)}.")
    metrics = getattr(found, "metrics", None)
    named = isinstance(metrics, tuple) and all(isinstance(m, Metric) for m in metrics)
    if not (metrics and named):
        raise UsageError(f"{shown}: {name}.metrics must be a tuple of Metric.")
    recipe: Any = found.recipe
    if not isinstance(recipe, Recipe):
        kind = type(recipe).__name__
        raise UsageError(f"{shown}: {name}.recipe must be a Recipe, got a {kind}.")
    return found


def _as_script(path: Path, shown: str) -> str | None:
    """Say how to compare a training script; None for a file that may have tasks.

    Decided without importing the file, which would run the script.
    """
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None  # the import names the error and its line
    nodes = list(ast.walk(tree))
    texts = [str(n.value) for n in nodes if isinstance(n, ast.Constant)]
    names = {n.id for n in nodes if isinstance(n, ast.Name)}
    bases = [b for n in nodes if isinstance(n, ast.ClassDef) for b in n.bases]
    modules = [n.module or "" for n in nodes if isinstance(n, ast.ImportFrom)]
    modules += [a.name for n in nodes if isinstance(n, ast.Import) for a in n.names]
    may_have_tasks = any(ast.unparse(base).endswith("Task") for base in bases)
    may_have_tasks |= bool(bases) and any(m.startswith(_ZOO) for m in modules)
    if may_have_tasks or not ("__main__" in texts or _PARSERS & set(modules)):
        return None
    seeds = [t for t in texts if re.fullmatch(r"--?[a-z_-]*seed", t)]
    command = f"python {shlex.quote(shown)} {[*seeds, '--seed'][0]} {SEED}"
    calls = {n.attr for n in nodes if isinstance(n, ast.Attribute)} | names
    first = (
        ""
        if "trial" in calls
        else "call switch_ema.trial in it (docs/own-runs.md) and "
    )
    return f'{shown} is a script, not a task: {first}write --script "{command}".'


def explain(error: BaseException, shown: str) -> UsageError:
    """Describe an error of the user's file in one line, with its line number."""
    path = Path(shown).expanduser().resolve()
    message = message_of(error).strip().partition("\n")[0]
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).resolve() == path
    ]
    if isinstance(error, SyntaxError) and error.filename == str(path):
        lines, message = [error.lineno], error.msg
    where = f"{shown}, line {lines[-1]}" if lines else shown
    if not isinstance(error, UsageError):  # our own messages need no exception name
        message = f"{type(error).__name__}: {message}"
    return UsageError(f"{where}: {message}".rstrip(": "))


def message_of(error: BaseException) -> str:
    """Return the message of an exception, even if its ``__str__`` fails."""
    try:
        return str(error)
    except Exception as second:
        return f"(its message cannot be shown: {type(second).__name__})"


def options_of(task_class: type[Task]) -> dict[str, inspect.Parameter]:
    """Return a task's options: its constructor's parameters except seed and split."""
    # The first parameter is the seed, whatever its name.
    options = list(inspect.signature(task_class).parameters.values())[1:]
    named = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return {
        option.name: option
        for option in options
        if option.kind in named and option.name != "split"
    }


def described_options(task_class: type[Task]) -> list[Option]:
    """List a task's options with defaults, meanings and allowed values."""
    meanings = meanings_of(task_class)
    return [
        Option(
            name,
            "" if option.default is option.empty else str(option.default),
            meanings.get(name, ""),
            values_of(task_class, name),
        )
        for name, option in options_of(task_class).items()
    ]


def takes_split(task_class: type[Task]) -> bool:
    """Whether the task can evaluate on held-out training data."""
    return "split" in inspect.signature(task_class).parameters


def _check_options(task_class: type[Task], spec: Spec) -> None:
    """Refuse unknown options, and values of the wrong type."""
    options, hints = options_of(task_class), _hints(task_class)
    for key, value in spec.options.items():
        if key not in options:
            known = ", ".join(_shown(option) for option in options.values()) or "none"
            raise UsageError(
                f"{spec.name} has no option {key!r}; its options are {known}."
            )
        _check_kind(spec.name, key, value, hints.get(key, Any))


def load_task_class(task: str | Spec) -> tuple[type[Task], Spec]:
    """Find a task's class and check its options, without creating the task.

    Args:
        task: a name with options, such as ``images:noise=0.3``, or a class in a file,
            such as ``my/task.py:Wine`` or ``my/task.py:Wine:size=50``.
    """
    spec = parse_task(task) if isinstance(task, str) else task
    if is_script(spec.name):
        raise UsageError(
            f"{spec.name.removeprefix(SCRIPT)} is a script: its run has only values, "
            "no data and no weights."
        )
    file = file_of(spec)
    if file is not None:
        task_class = _load_from_file(file, spec.name[len(file) + 1 :])
    elif spec.name in registered_tasks():
        task_class = import_task(spec.name)
    else:
        names = registered_tasks()
        raise unknown("task", spec.name, names, ", or path/to/file.py:ClassName")
    _check_options(task_class, spec)
    return task_class, spec


def with_readers(task: str, readers: int | None) -> Spec:
    """Set how many processes read a task's data, if given and if it has the option."""
    task_class, spec = load_task_class(task)
    if readers is None or READERS not in options_of(task_class):
        return spec
    return replace(spec, options={**spec.options, READERS: readers})


def create_task(task: str | Spec, seeds: Sequence[int], *, split: str = "test") -> Task:
    """Create a task for one seed, or for several that are trained stacked."""
    task_class, spec = load_task_class(task)
    options = dict(spec.options)
    if takes_split(task_class):
        options["split"] = split
    elif split != "test":
        raise UsageError(
            f"{spec.name} cannot be tuned: its constructor has no keyword split."
        )
    try:
        if issubclass(task_class, SeedBatchTask):
            return task_class(tuple(seeds), **options)
        if len(seeds) == 1:
            return task_class(seeds[0], **options)
        if task_class.seeds_at_once(spec.options) == 1:
            raise UsageError(f"{spec.name} takes one seed, got {len(seeds)}.")
        return stack_tasks(lambda seed: task_class(seed, **options), seeds)
    except UsageError:
        raise
    except Exception as error:
        file = file_of(spec)
        if file is not None:
            raise explain(error, file) from None
        if isinstance(error, ValueError):
            raise UsageError(f"{spec.name}: {error}") from None
        raise


def _is_task(value: object, module: ModuleType) -> bool:
    return (
        inspect.isclass(value)
        and issubclass(value, Task)
        and value.__module__ == module.__name__
    )


@lru_cache(maxsize=32)
def _import(path: Path, shown: str, changed: int) -> ModuleType:
    """Import a file once; ``changed``, its mtime, makes an edited file load again."""
    del changed
    name = f"switch_ema_user_{path.stem}_{sha1(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickle look the module up; its folder joins the path, so that it
    # can import its neighbours.
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise explain(error, shown) from None
    return module


def _shown(option: inspect.Parameter) -> str:
    if option.default is inspect.Parameter.empty:
        return option.name
    return f"{option.name}={option.default}"


def _hints(task_class: type[Task]) -> dict[str, Any]:
    try:
        return get_type_hints(task_class.__init__)
    except (NameError, TypeError):  # the user's annotations may not resolve
        return {}


def _check_kind(task: str, key: str, value: Any, hint: Any) -> None:
    union = get_origin(hint) in (Union, type(int | str))
    kinds = get_args(hint) if union else (hint,)
    if not all(kind in KINDS for kind in kinds):
        return
    accepted = (*kinds, int) if float in kinds else kinds
    if type(value) not in accepted:
        words = " or ".join(KINDS[kind] for kind in kinds)
        raise UsageError(f"{task}: {key} must be {words}, got {value!r}.")
