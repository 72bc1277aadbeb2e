"""Commands that list what there is."""

from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from switch_ema.bench.data import catalogue
from switch_ema.bench.methods import DESCRIPTIONS
from switch_ema.bench.methods import options_of as options_of_method
from switch_ema.bench.optimizers.catalog import OPTIMIZERS
from switch_ema.bench.tasks import options_of as options_of_task
from switch_ema.bench.tasks.registry import TASKS, describe_task, import_task


@dataclass(frozen=True)
class Tasks:
    """List the tasks."""

    def __call__(self, console: Console) -> None:
        """List them."""
        table = Table("task", "what it is", "options", title="Tasks")
        for name in TASKS:
            options = (
                f"{option.name}={option.default}"
                for option in options_of_task(import_task(name)).values()
            )
            table.add_row(name, escape(describe_task(name)), escape(", ".join(options)))
        console.print(table)


@dataclass(frozen=True)
class Methods:
    """List the averaging methods with their options."""

    def __call__(self, console: Console) -> None:
        """List them."""
        table = Table("method", "what it does", "options", title="Methods")
        for name, description in DESCRIPTIONS.items():
            table.add_row(name, escape(description), ", ".join(options_of_method(name)))
        console.print(table)


@dataclass(frozen=True)
class Optimizers:
    """List the optimizers."""

    def __call__(self, console: Console) -> None:
        """List them."""
        table = Table("name", "what it is", title="Optimizers")
        for name, info in OPTIMIZERS.items():
            table.add_row(name, escape(info.description))
        console.print(table)


@dataclass(frozen=True)
class Data:
    """Show which data was found where, and how to get the rest."""

    def __call__(self, console: Console) -> None:
        """Show it."""
        table = Table("data", "found", "where", "how to get it", title="Data")
        for source in catalogue():
            found = "[green]yes[/]" if source.found else "no"
            table.add_row(source.name, found, escape(source.where), escape(source.how))
        console.print(table)
