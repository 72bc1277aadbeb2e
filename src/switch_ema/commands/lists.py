"""Commands that list tasks, methods and optimizers.

Lists need no torch; it is imported only where needed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import tyro
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from switch_ema.bench.method_names import DESCRIPTIONS
from switch_ema.bench.optimizers.catalog import OPTIMIZERS
from switch_ema.bench.spec import parse_method_spec
from switch_ema.bench.text import printable, unknown
from switch_ema.zoo.tasks.registry import DATA, TASKS, describe_task

if TYPE_CHECKING:
    from switch_ema.bench.option_docs import Option
    from switch_ema.zoo.data import DataSource


@dataclass(frozen=True)
class Tasks:
    """List the tasks and the data they need, or the options of one task.

    - switch-ema tasks
    - switch-ema tasks images
    """

    task: tyro.conf.Positional[str | None] = None
    """Task to show the options of: a name, or path/to/file.py:ClassName."""

    def __call__(self, console: Console) -> None:
        """List them."""
        if self.task is None:
            self._list(console)
            return
        from switch_ema.bench.loading import described_options, load_task_class

        task_class, spec = load_task_class(self.task)
        console.print(escape((task_class.__doc__ or "").partition("\n")[0]))
        _print_options(described_options(task_class), console)
        if spec.name in DATA:
            (source,) = [s for s in _sources() if s.name == DATA[spec.name]]
            state = f"found in {source.where}" if source.found else source.how
            text = f"Needs the data {source.name} unless another is chosen: {state}."
            console.print(escape(text), soft_wrap=True)

    def _list(self, console: Console) -> None:
        found = {source.name: source.found for source in _sources()}
        table = Table("task", "description", title="Tasks")
        for name in TASKS:
            text = escape(describe_task(name))
            if name in DATA:
                state = "[green]found[/]" if found[DATA[name]] else "[red]not found[/]"
                text += f"\n[dim]needs the data {DATA[name]}:[/] {state}"
            table.add_row(name, text)
        console.print(table)
        if not all(found[name] for name in DATA.values()):
            console.print("switch-ema data shows how to get the data not found.")


def _sources() -> "list[DataSource]":
    from switch_ema.zoo.data import catalogue

    return catalogue()


@dataclass(frozen=True)
class Methods:
    """List the averaging methods, or the options of one method.

    - switch-ema methods
    - switch-ema methods switch-ema
    """

    method: tyro.conf.Positional[str | None] = None
    """Method to show the options of, as compare takes it."""

    def __call__(self, console: Console) -> None:
        """List them."""
        if self.method is None:
            _print_list("method", DESCRIPTIONS, console)
            return
        name = parse_method_spec(self.method).name
        if name not in DESCRIPTIONS:
            raise unknown("method", name, DESCRIPTIONS)
        from switch_ema.bench.methods import described_options

        console.print(escape(DESCRIPTIONS[name]))
        options = described_options(name)
        if options:
            _print_options(options, console)
            example = f"{name}:{options[0].name}={options[0].default}"
            console.print(f"Options are typed after the name, as in {escape(example)}.")
        else:
            console.print("No options.")


@dataclass(frozen=True)
class Optimizers:
    """List the optimizers."""

    def __call__(self, console: Console) -> None:
        """List them."""
        rows = {name: info.description for name, info in OPTIMIZERS.items()}
        _print_list("optimizer", rows, console)


def _print_list(kind: str, descriptions: dict[str, str], console: Console) -> None:
    table = Table(kind, "description", title=f"{kind.capitalize()}s")
    for name, description in descriptions.items():
        table.add_row(name, escape(description))
    console.print(table)


def _print_options(options: "Sequence[Option]", console: Console) -> None:
    """Print a table of options: default, meaning and, below it, allowed values."""
    table = Table("option", "default", "meaning and values", show_lines=True)
    for option in options:
        meaning = Text(printable(option.meaning))
        if option.values:
            meaning.append("\n" if option.meaning else "")
            meaning.append(f"values: {printable(option.values)}", "dim")
        table.add_row(option.name, escape(printable(option.default)), meaning)
    console.print(table)
