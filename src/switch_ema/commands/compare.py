"""`switch-ema compare`, and what shows its runs again."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

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
from switch_ema.bench.spec import UsageError


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
