"""`switch-ema boundary`: decision boundaries of 2D tasks over many seeds."""

from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console

from switch_ema._extras import needed
from switch_ema.bench.errors import UsageError
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.commands.show_section import publish


@dataclass(frozen=True)
class BoundaryCommand:
    """Draw and measure decision boundaries on 2D points.

    The paper's figures 4 (circles) and A1 (moons), with numbers: accuracy, width,
    roughness and length of the boundary over many seeds, with 97% intervals and paired
    differences from the first method. Repeat the command to resume an interrupted run.

    - switch-ema boundary
    - switch-ema boundary moons:noise=0.2,lr=0.1,momentum=0.9 --seeds 50
    """

    task: tyro.conf.Positional[str] = "circles"
    """circles or moons, with options."""
    methods: tuple[str, ...] = ("plain", "ema", "switch-ema")
    """Methods with options; the first is the baseline."""
    seeds: int = 24
    """Number of seeds."""
    epochs: int | None = None
    """Number of epochs; None: the task's own."""
    out: Path = Path("runs")
    """Parent folder of the results."""

    @property
    def _name(self) -> str:
        """Name the run like a comparison with the same settings."""
        settings = CompareConfig(
            tasks=(self.task,),
            methods=self.methods,
            seeds=self.seeds,
            epochs=self.epochs,
        )
        return settings.default_name

    def __call__(self, console: Console) -> None:
        """Train, measure, draw and write."""
        with needed(None, "bench,analysis", error=UsageError):
            from switch_ema.bench.analyses.boundary import compare_boundaries
            from switch_ema.bench.report.boundaries import boundary_section
            from switch_ema.commands.progress import TalkingBar

        folder = self.out / f"boundary-{self._name}"
        comparison = compare_boundaries(
            self.task,
            self.methods,
            self.seeds,
            epochs=self.epochs,
            folder=folder,
            watcher=TalkingBar(console),
        )
        section = boundary_section(comparison, folder)
        publish(section, folder, "Decision boundaries", console)
