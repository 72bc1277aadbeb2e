"""`switch-ema reproduce`: tables of the paper, ours beside the paper's."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from switch_ema.bench.execute.options import launched
from switch_ema.paper.reproduce.presets import RowSettings


@dataclass(frozen=True)
class Reproduce:
    """Train the paper's tables; print ours beside the paper's.

    Small scale: a small network of the same class on small data, minutes for a row on
    two cores, to be compared in sign and size of the gains. Paper scale: the paper's
    networks, data and epochs, for a cluster. The same command again continues where it
    was stopped; what is stored is shown for all rows of a table.

    - switch-ema reproduce --list
    - switch-ema reproduce table-3 --rows resnet18 'swin-*'
    - switch-ema reproduce table-13 figure-decay
    - switch-ema reproduce all --budget 30min
    - switch-ema reproduce table-2 --scale paper --dry-run
    - switch-ema reproduce table-2 --scale paper --executor ray --workers-per-training 8
    - switch-ema reproduce --write-docs docs/results.md
    """

    tables: Annotated[
        tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="[TABLE ...]")
    ] = ()
    """Names of tables and figures, such as table-3; --list shows them. "all" is every
    one of them, in one run with one page."""
    rows: tuple[str, ...] = ()
    """Names of rows or patterns such as 'resnet50-*'; all by default."""
    settings: Annotated[RowSettings, tyro.conf.arg(name="")] = field(
        default_factory=RowSettings
    )
    budget: str | None = None
    """For all: the time there is, such as 90s, 30min or 2h; it chooses rows and
    seeds."""
    out: Path = Path("runs")
    """Folder that the folders of the tables are made in."""
    jobs: int = 0
    """Trainings at a time; 0: one per core, or per GPU."""
    executor: str = "local"
    """Where trainings run: local (processes), ray or slurm (a cluster), or inline (in
    this process)."""
    workers_per_training: int = field(default_factory=lambda: launched()[1])
    """Workers, with a GPU each if there are any, that divide each batch of a training
    among them."""
    address: str | None = None
    """Address of the Ray cluster; None: the one on this machine, or a new one."""
    slurm: tuple[str, ...] = ()
    """Options of the jobs of --executor slurm, as submitit names them."""
    device: str | None = None
    """cpu, or None for what Accelerate finds."""
    dry_run: bool = False
    """Print the plan with its estimated time, and stop."""
    list: bool = False
    """List the rows with the paper's numbers, and stop."""
    write_docs: Path | None = None
    """Train nothing: write what is stored to this file, as Markdown."""

    def __call__(self, console: Console) -> None:
        """Do what was asked for."""
        from switch_ema.commands.reproduction import reproduce

        reproduce(self, console)
