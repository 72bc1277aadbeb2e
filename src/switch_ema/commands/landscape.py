"""`switch-ema landscape`: the loss around the final weights of a run."""

import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.markup import escape

from switch_ema._extras import needed
from switch_ema.bench.analyses.landscape_settings import LandscapeSettings
from switch_ema.bench.errors import UsageError
from switch_ema.bench.execute.options import check_device
from switch_ema.commands.show_section import name_files, print_sheet


@dataclass(frozen=True)
class Landscape:
    """Draw and measure the loss around the weights of a finished run.

    For the first seed of every task: loss and primary metric along a random direction
    and on the line between two methods, the plane of the training trajectories,
    sharpness and calibration. Writes figures for papers (PNG, SVG, PDF) and adds a
    section to the run's report.
    """

    run: tyro.conf.Positional[Path]
    """Folder of the run, such as runs/NAME."""
    methods: tuple[str, ...] = ()
    """Methods, as the run names them; default: plain, EMA, SWA and Switch EMA."""
    settings: Annotated[LandscapeSettings, tyro.conf.arg(name="")] = field(
        default_factory=LandscapeSettings
    )
    device: str | None = None
    """cpu, cuda, ...; None: chosen by Accelerate."""

    def __post_init__(self) -> None:
        check_device(self.device)

    def __call__(self, console: Console) -> None:
        """Compute, draw and write."""
        with (
            needed(None, "bench,analysis", error=UsageError),
            console.status("Loading torch"),
        ):
            from switch_ema.bench.compare import summarize_run
            from switch_ema.bench.report.landscapes import landscape_section
            from switch_ema.bench.report.page import write_run_page
            from switch_ema.bench.report.sections import save_section
            from switch_ema.bench.results.kept_weights import load_kept
            from switch_ema.commands.progress import parts_bar

        command = shlex.join(["switch-ema", "landscape", str(self.run)])
        with parts_bar(console) as show:
            kept = load_kept(self.run, self.methods, self.device)
            if all(task.task.loss_in_training_only for task in kept):
                raise UsageError(_no_loss(kept[0].name))
            for number, task in enumerate(kept, 1):
                if task.task.loss_in_training_only:
                    console.print(escape(_no_loss(task.name)), soft_wrap=True)
                    continue
                section = landscape_section(
                    task,
                    self.settings,
                    self.run,
                    key=f"landscape-{number}",
                    command=command,
                    progress=show,
                )
                save_section(section, self.run)
                console.print(f"\n[bold]{escape(section.title)}")
                for sheet in section.sheets:
                    print_sheet(sheet, console)
        with console.status("Writing the page"):
            page = write_run_page(summarize_run(self.run), self.run)
        name_files(self.run, page, console)


def _no_loss(task: str) -> str:
    return (
        f"{task} has a loss in training mode only, so its evaluated weights have no "
        "loss landscape."
    )
