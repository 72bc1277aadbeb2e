"""`switch-ema theory`: the noisy quadratic model, computed and checked."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console

from switch_ema._extras import needed
from switch_ema.bench.errors import UsageError
from switch_ema.commands.show_section import publish


@dataclass(frozen=True)
class Theory:
    """Check the paper's propositions against simulations.

    For a grid of learning rates, decays, curvatures and intervals, prints the closed
    form, the result of independent simulated chains, and their difference in standard
    errors; then each proposition's claims and what actually holds. See docs/theory.md.
    """

    chains: int = 10_000
    """Independent simulations per setting."""
    seed: int = 0
    """Seed of the simulations."""
    out: Path = Path("runs")
    """Parent folder of the results."""

    def __post_init__(self) -> None:
        if self.chains < 2:
            raise UsageError(f"chains must be at least 2, got {self.chains}.")

    def __call__(self, console: Console) -> None:
        """Compute, draw and write."""
        with (
            needed(None, "bench,analysis", error=UsageError),
            console.status("Loading torch"),
        ):
            from switch_ema.commands.progress import parts_bar
            from switch_ema.paper.show.theory_section import theory_section
            from switch_ema.theory.checks import Grid, check_grid

        folder = self.out / "theory"
        with parts_bar(console) as show:
            grid = Grid(chains=self.chains, seed=self.seed)
            checks = check_grid(grid, partial(show, "simulations"))
            flags = f"--chains {self.chains}"
            section = theory_section(checks, folder, flags, partial(show, "figures"))
        publish(section, folder, "The noisy quadratic model", console)
