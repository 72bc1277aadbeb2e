"""Commands that list tasks, methods, optimizers and data.

Lists need no torch; it is imported only where needed.
"""

from dataclasses import dataclass

import tyro
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from switch_ema.bench.method_names import DESCRIPTIONS
from switch_ema.bench.optimizers.catalog import OPTIMIZERS
from switch_ema.bench.text import unknown
from switch_ema.zoo.tasks.registry import TASKS, describe_task


@dataclass(frozen=True)
class Tasks:
    """List the tasks, or the options of one task.

    - switch-ema tasks
    - switch-ema tasks images
    """

    task: tyro.conf.Positional[str | None] = None
    """Task to show the options of: a name, or path/to/file.py:ClassName."""

    def __call__(self, console: Console) -> None:
        """List them."""
        if self.task is None:
            descriptions = {name: describe_task(name) for name in TASKS}
            _print_list("task", descriptions, console)
            return
        from switch_ema.bench.loading import load_task_class, options_of

        task_class, _ = load_task_class(self.task)
        console.print(escape((task_class.__doc__ or "").partition("\n")[0]))
        table = Table("option", "default")
        for option in options_of(task_class).values():
            given = option.default is not option.empty
            table.add_row(option.name, escape(str(option.default)) if given else "")
        console.print(table)


@dataclass(frozen=True)
class Methods:
    """List the averaging methods, or the options of one method.

    - switch-ema methods
    - switch-ema methods switch-ema
    """

    method: tyro.conf.Positional[str | None] = None
    """Method to show the options of."""

    def __call__(self, console: Console) -> None:
        """List them."""
        if self.method is None:
            _print_list("method", DESCRIPTIONS, console)
            return
        if self.method not in DESCRIPTIONS:
            raise unknown("method", self.method, DESCRIPTIONS)
        from switch_ema.bench.methods import options_of

        console.print(escape(DESCRIPTIONS[self.method]))
        options = options_of(self.method)
        if not options:
            console.print("No options.")
            return
        table = Table("option", "default")
        for name, default in options.items():
            table.add_row(name, escape(default))
        console.print(table)


@dataclass(frozen=True)
class Optimizers:
    """List the optimizers."""

    def __call__(self, console: Console) -> None:
        """List them."""
        rows = {name: info.description for name, info in OPTIMIZERS.items()}
        _print_list("optimizer", rows, console)


@dataclass(frozen=True)
class Data:
    """Show which datasets were found, and how to get the others."""

    def __call__(self, console: Console) -> None:
        """Show it."""
        from switch_ema.zoo.data import catalogue

        table = Table("data", "found", "where", "how to get it", title="Data")
        for source in catalogue():
            found = "[green]yes[/]" if source.found else "no"
            table.add_row(source.name, found, escape(source.where), escape(source.how))
        console.print(table)


def _print_list(kind: str, descriptions: dict[str, str], console: Console) -> None:
    table = Table(kind, "description", title=f"{kind.capitalize()}s")
    for name, description in descriptions.items():
        table.add_row(name, escape(description))
    console.print(table)
