"""`switch-ema figure`: the paper's figures, of its own tasks or any runs."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from switch_ema.bench.errors import UsageError
from switch_ema.bench.execute.options import RunOptions
from switch_ema.bench.text import unknown
from switch_ema.commands.reproduce import Reproduce
from switch_ema.paper.show.figures import FIGURES


@dataclass(frozen=True)
class FigureCommand:
    """Draw a figure of the paper, from finished runs or from scratch.

    Given run folders, draws them, several in one picture. Otherwise trains the paper's
    tasks at the small scale first, like `switch-ema reproduce figure-NAME`. Writes PNG,
    SVG and PDF, with selectable text.

    - switch-ema figure
    - switch-ema figure convergence runs/digits-3f runs/noisy-digits-7a
    - switch-ema figure landscape runs/digits-3f --methods plain ema switch-ema
    - switch-ema figure gains runs/digits-3f
    - switch-ema figure mechanism evidence/table-3/*.jsonl
    - switch-ema figure boundary
    """

    name: tyro.conf.Positional[str | None] = None
    """convergence, landscape, plane, boundary, decay, gains or mechanism; without a
    name, list them."""
    runs: Annotated[
        tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="[RUN ...]")
    ] = ()
    """Folders of finished runs, such as runs/NAME; most figures read evidence files,
    too."""
    methods: tuple[str, ...] = ()
    """Methods to draw; default: those of the paper."""
    out: Path = Path("runs")
    """Parent folder of the figure's folder."""
    force: bool = False
    """Replace a figure that was drawn before; otherwise it is left alone."""

    def __call__(self, console: Console) -> None:
        """Draw it."""
        if self.name is None:
            _list(console)
            return
        if self.name not in FIGURES:
            raise unknown("figure", self.name, FIGURES)
        if self.runs:
            self._draw(self.name, console)
        elif self.methods:
            raise UsageError(
                "--methods selects methods of finished runs; name the run folders."
            )
        elif FIGURES[self.name].make is None:
            raise UsageError(
                f"{self.name} draws finished runs; name folders such as runs/NAME."
            )
        else:
            tables = (f"figure-{self.name}",)
            Reproduce(tables=tables, run=RunOptions(out=self.out))(console)

    def _draw(self, name: str, console: Console) -> None:
        from switch_ema.bench.report.sections import FIGURES as PICTURES
        from switch_ema.bench.report.sections import AnalysisSection
        from switch_ema.commands.show_section import publish
        from switch_ema.paper.show.figures.figure import DrawnRun
        from switch_ema.paper.show.sections import draw_section

        kind, folder = FIGURES[name], self.out / f"figure-{name}"
        if not self.force and any((folder / PICTURES).glob("*")):
            raise UsageError(
                f"{folder} has a figure already; --force replaces it, and another "
                "--out keeps both."
            )
        command = ["switch-ema", "figure", name, *map(str, self.runs)]
        if self.methods:
            command += ["--methods", *self.methods]
        title = kind.description[0].upper() + kind.description[1:]
        if kind.number is not None:
            title = f"Like Figure {kind.number} of the paper: {kind.description}"
        section = AnalysisSection(
            key=name,
            title=title,
            command=shlex.join(command),
        )
        runs = [DrawnRun("", run) for run in self.runs]
        with console.status(f"Measuring and drawing {name}"):
            section = draw_section(section, kind.draw, runs, self.methods, folder)
        publish(section, folder, f"Figure: {name}", console)


def _list(console: Console) -> None:
    table = Table("figure", "in the paper", "what it shows", title="Figures")
    for kind in FIGURES.values():
        number = f"Figure {kind.number}" if kind.number else "-"
        table.add_row(kind.name, number, escape(kind.description))
    console.print(table)
