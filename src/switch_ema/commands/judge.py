"""`switch-ema judge`: statistics of a comparison from existing log files."""

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro
from rich.console import Console
from rich.text import Text

from switch_ema.bench.errors import UsageError
from switch_ema.bench.text import printable


@dataclass(frozen=True)
class Judge:
    """Compare methods from existing log files, one per seed and method.

    Compares the last value of each log with the statistics of switch-ema compare.
    Reads CSV (Lightning, timm), JSON lines, JSON (trainer_state.json of Transformers)
    and TensorBoard event files. The method is the first path component that differs, or
    NAME in NAME=PATTERN; the seed is read from the path, otherwise logs are paired by
    order.

    - switch-ema judge plain/*.csv ema/*.csv --metric val_accuracy
    - switch-ema judge plain=logs/version_[0-4] ema=logs/version_[5-9] --metric val_loss
    - switch-ema judge runs/NAME/trackers/digits-*
    """

    logs: Annotated[
        tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="LOG [LOG ...]")
    ]
    """Files, folders or NAME=PATTERN."""
    metric: str | None = None
    """Column to compare; None: the only one common to all logs."""
    baseline: str | None = None
    """Method to compare with; None: plain if present, otherwise the first."""
    lower_is_better: bool = False
    """Set the direction if the metric's name does not: losses and errors do."""
    higher_is_better: bool = False
    """The opposite."""
    unit: str = ""
    """Unit of the metric, such as %."""
    title: str = "logs"
    """Title of the table."""
    format: Literal["table", "md", "csv", "latex"] = "table"
    """Output format."""
    verbose: bool = False
    """Print every verdict, and how verdicts are reached."""

    def __call__(self, console: Console) -> None:
        """Read the logs and print the table."""
        from switch_ema.bench.judge import judge
        from switch_ema.bench.logs.naming import group_logs
        from switch_ema.bench.report.tables import FORMATS
        from switch_ema.bench.report.terminal import print_comparison, print_findings

        if self.lower_is_better and self.higher_is_better:
            raise UsageError("give --lower-is-better or --higher-is-better, not both.")
        given = self.lower_is_better or self.higher_is_better
        found = judge(
            group_logs(self.logs),
            metric=self.metric,
            baseline=self.baseline,
            lower_is_better=self.lower_is_better if given else None,
            unit=self.unit,
            name=self.title,
        ).summary
        if self.format != "table":
            print(FORMATS[self.format](found), end="")
        elif self.verbose:
            print_comparison(found, console)
        else:
            print_findings(found, console)
            description = printable(found.tasks[0].description)
            console.print(Text(f"{description}.", style="dim"))
        _check_complete(found.tasks[0].problems)


def _check_complete(problems: list[str]) -> None:
    """Raise an error if a log was excluded, as for a failed training."""
    if problems:
        others = f" ({len(problems) - 1} more)" if problems[1:] else ""
        raise UsageError(f"some logs were excluded: {problems[0]}{others}")
