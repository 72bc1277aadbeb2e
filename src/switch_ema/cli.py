"""The command line: ``switch-ema compare`` and what goes with it."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from switch_ema.bench.spec import UsageError

try:
    import tyro
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from switch_ema.bench.compare import (
        REPORT,
        RESULTS,
        RunOptions,
        open_run,
        report,
        run_comparison,
    )
    from switch_ema.bench.config import CompareConfig
except ModuleNotFoundError as error:  # pragma: no cover - a broken installation
    sys.exit(
        f"switch-ema: the command line needs {error.name}: "
        'pip install "switch-ema[bench]"'
    )


@dataclass(frozen=True)
class Compare:
    """Find out whether averaging helps: methods x seeds on tasks, with statistics.

    Trains every method with the same seeds, initial weights and batches, and writes a
    table, a verdict in words and one page. Methods that only read the weights share
    one training. The same command again continues where it was stopped.

    To begin with:

    - switch-ema compare
    - switch-ema compare moons --seeds 100
    - switch-ema compare digits --methods plain ema:decay=0.9 ema:decay=0.99 switch-ema
    - switch-ema compare path/to/file.py:MyTask --optimizer adamw:lr=1e-3
    - switch-ema compare --config runs/NAME/config.json
    """

    settings: Annotated[CompareConfig, tyro.conf.arg(name="")] = field(
        default_factory=CompareConfig
    )
    run: Annotated[RunOptions, tyro.conf.arg(name="")] = field(
        default_factory=RunOptions
    )
    config: Path | None = None
    """Repeat the comparison whose configuration is stored in this JSON file."""

    def __call__(self, console: Console) -> None:
        """Run it."""
        settings = self.settings
        if self.config is not None:
            if settings != CompareConfig():
                raise UsageError(
                    "--config repeats a stored comparison as it is; leave out the "
                    "tasks and the options that change its numbers."
                )
            if not self.config.is_file():
                raise UsageError(f"{self.config} does not exist.")
            text = self.config.read_text()
            settings = CompareConfig.from_json(text, str(self.config))
        path = run_comparison(settings, self.run, console)
        if path is not None:
            console.print(f"Report: {escape(str(path))}", soft_wrap=True)


@dataclass(frozen=True)
class Report:
    """Print a run's results again and write its page anew."""

    run: tyro.conf.Positional[Path]
    """Folder of the run, such as runs/NAME."""

    def __call__(self, console: Console) -> None:
        """Make the report."""
        settings, results = open_run(self.run)
        path = report(settings, results, self.run, console)
        if path is not None:
            console.print(f"Report: {escape(str(path))}", soft_wrap=True)


@dataclass(frozen=True)
class Runs:
    """List the runs in a folder."""

    out: Path = Path("runs")
    """Folder that holds run folders."""

    def __call__(self, console: Console) -> None:
        """List them."""
        table = Table("run", "tasks", "seeds", "trainings", "report", title="Runs")
        for file in sorted(self.out.glob(f"*/{RESULTS}")):
            settings, results = open_run(file.parent)
            table.add_row(
                escape(str(file.parent)),
                escape(" ".join(settings.tasks)),
                str(settings.seeds),
                str(len(results.statuses())),
                "yes" if (file.parent / REPORT).is_file() else "no",
            )
        console.print(table)


@dataclass(frozen=True)
class Tasks:
    """List the tasks."""

    def __call__(self, console: Console) -> None:
        """List them."""
        from switch_ema.bench.tasks import TASKS, options_of

        table = Table("task", "what it is", "options", title="Tasks")
        for name, (task_class, description) in TASKS.items():
            options = (
                f"{option.name}={option.default}"
                for option in options_of(task_class).values()
            )
            table.add_row(name, escape(description), escape(", ".join(options)))
        console.print(table)


@dataclass(frozen=True)
class Methods:
    """List the averaging methods with their options."""

    def __call__(self, console: Console) -> None:
        """List them."""
        from switch_ema.bench.methods import DESCRIPTIONS, options_of

        table = Table("method", "what it does", "options", title="Methods")
        for name, description in DESCRIPTIONS.items():
            table.add_row(name, escape(description), ", ".join(options_of(name)))
        console.print(table)


@dataclass(frozen=True)
class Optimizers:
    """List the optimizers."""

    def __call__(self, console: Console) -> None:
        """List them."""
        from switch_ema.bench.optimizers import OPTIMIZERS

        names = {name: info.description for name, info in OPTIMIZERS.items()}
        _print_names(console, "Optimizers", names)


@dataclass(frozen=True)
class Data:
    """Show which data was found where, and how to get the rest."""

    def __call__(self, console: Console) -> None:
        """Show it."""
        from switch_ema.bench.data import catalogue

        table = Table("data", "found", "where", "how to get it", title="Data")
        for source in catalogue():
            found = "[green]yes[/]" if source.found else "no"
            table.add_row(source.name, found, escape(source.where), escape(source.how))
        console.print(table)


COMMANDS: dict[str, Callable[..., Any]] = {
    "compare": Compare,
    "report": Report,
    "runs": Runs,
    "tasks": Tasks,
    "methods": Methods,
    "optimizers": Optimizers,
    "data": Data,
}


def _print_names(console: Console, title: str, names: dict[str, str]) -> None:
    table = Table("name", "what it is", title=title)
    for name, description in names.items():
        table.add_row(name, escape(description))
    console.print(table)


def main(arguments: list[str] | None = None) -> None:
    """Run a command; the user's mistakes are one sentence and exit code 2."""
    try:
        command = tyro.extras.subcommand_cli_from_dict(
            COMMANDS,
            prog="switch-ema",
            description="Weight averaging for PyTorch: does it help on your task?",
            args=arguments,
            config=(tyro.conf.OmitArgPrefixes, tyro.conf.CascadeSubcommandArgs),
        )
        command(Console())
    except UsageError as error:
        _fail(str(error))
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _fail(f"{where}{error.strerror or error}.")
    except KeyboardInterrupt:
        print("switch-ema: stopped; the same command continues.", file=sys.stderr)
        sys.exit(130)


def _fail(message: str) -> None:
    print(f"switch-ema: {message}", file=sys.stderr)
    sys.exit(2)
