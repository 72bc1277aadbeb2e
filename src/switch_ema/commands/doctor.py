"""`switch-ema doctor`: is the average in these checkpoints right?"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from switch_ema._checks import listed
from switch_ema.bench.errors import UsageError
from switch_ema.commands.output import AnyConsole, print_line, print_wrapped
from switch_ema.commands.parsing import Positional

if TYPE_CHECKING:
    from switch_ema.doctor.diagnosis import Diagnosis


@dataclass(frozen=True)
class Doctor:
    """Examine the average in two or more checkpoints of one run.

    Estimates the decay in force, and names what is wrong: an average that is frozen,
    stalled in half precision, equal to the live weights, inverted, restarted, and more.
    Exit code 0: healthy, 1: findings, 2: could not tell. See docs/doctor.md.

    - switch-ema doctor step-1000.pt step-2000.pt step-3000.pt
    - switch-ema doctor a.pt b.pt --decay 0.999 --steps 500
    """

    checkpoints: Positional[tuple[Path, ...]]
    """Checkpoints of one run with live weights and an average, oldest first."""
    decay: float | None = None
    """The declared decay; default: the one in the files, if any."""
    steps: int | None = None
    """Updates between two checkpoints; default: from the counters in the files."""

    def __call__(self, console: AnyConsole) -> None:
        """Print the findings; exit with 1 or 2 unless the average is healthy."""
        from switch_ema.doctor.diagnosis import diagnose

        if self.decay is not None and not 0 < self.decay < 1:
            raise UsageError(f"decay must be between 0 and 1, got {self.decay}.")
        if self.steps is not None and self.steps < 1:
            raise UsageError(f"steps must be at least 1, got {self.steps}.")
        try:
            result = diagnose(self.checkpoints, decay=self.decay, steps=self.steps)
        except ValueError as error:
            raise UsageError(str(error)) from error
        _print(console, result)
        raise SystemExit(result.exit_code)


def _print(console: AnyConsole, result: "Diagnosis") -> None:
    known = [f"{value:.4g}" for value in result.decays if value is not None]
    if known:
        print_wrapped(console, f"Decay in force: {listed(known, most=8)}")
    for finding in result.findings:
        print_line(console, "")
        print_wrapped(console, str(finding), "  ")
        fault = finding.fault
        explained = {
            "Meaning": fault.meaning,
            "Likely cause": fault.cause,
            "Fix": fault.fix,
        }
        for title, text in explained.items():
            print_wrapped(console, f"  {title}: {text}", "    ")
    if not result.findings:
        for text in dict.fromkeys(result.unknown):
            print_wrapped(console, f"Could not tell: {text}.")
    if result.exit_code == 0:
        print_line(console, "No findings: the average follows its rule.")
