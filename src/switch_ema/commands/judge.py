"""`switch-ema judge`: statistics of a comparison from existing log files."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from switch_ema.bench.errors import UsageError
from switch_ema.bench.text import is_evidence, printable
from switch_ema.commands.output import (
    AnyConsole,
    PlainConsole,
    exit_unless,
    print_line,
    print_table,
)
from switch_ema.commands.parsing import Positional, shown_as

if TYPE_CHECKING:
    from switch_ema.bench.report.machine import Condition
    from switch_ema.bench.stats.summary import ComparisonSummary, TaskSummary


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
    - switch-ema judge evidence/table-3/resnet18.jsonl --baseline ema
    """

    logs: Annotated[Positional[tuple[str, ...]], shown_as("LOG [LOG ...]")]
    """Files, folders or NAME=PATTERN; or one evidence file."""
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
    smallest_effect: float | None = None
    """Smallest difference that matters, in the metric's unit: "no difference" needs an
    interval between minus and plus this; None: 0.5 if the unit is %, otherwise 1% of
    the baseline's value."""
    until_decided: bool = False
    """Use p-values and intervals that stay valid if you judge again whenever logs of
    more seeds are there, until the verdicts are settled."""
    title: str = "logs"
    """Title of the table."""
    format: Literal["table", "md", "csv", "latex", "json"] = "table"
    """Output format."""
    fail_unless: str | None = None
    """Exit with code 1 unless this is so: helps (at least one method),
    no-worse or decided (all methods); or METHOD:helps, METHOD:no-worse,
    METHOD:no-difference, METHOD:hurts, METHOD:decided."""
    verbose: bool = False
    """Print every verdict, and how verdicts are reached."""

    def __call__(self, console: AnyConsole) -> None:
        """Read the logs and print the table."""
        from switch_ema.bench.judge import judge
        from switch_ema.bench.logs.naming import group_logs
        from switch_ema.bench.report.machine import Condition
        from switch_ema.bench.report.tables import FORMATS

        condition = Condition.parse(self.fail_unless) if self.fail_unless else None
        if self.lower_is_better and self.higher_is_better:
            raise UsageError("give --lower-is-better or --higher-is-better, not both.")
        given = self.lower_is_better or self.higher_is_better
        files = [Path(log) for log in self.logs if is_evidence(Path(log))]
        if files:
            self._judge_evidence(files, console, condition)
            return
        found = judge(
            group_logs(self.logs),
            metric=self.metric,
            baseline=self.baseline,
            lower_is_better=self.lower_is_better if given else None,
            unit=self.unit,
            smallest_effect=self.smallest_effect,
            until_decided=self.until_decided,
            name=self.title,
        ).summary
        if self.format != "table":
            print(FORMATS[self.format](found), end="")
        else:
            _show(found, console, verbose=self.verbose)
        _check_complete(found.tasks[0].problems)
        exit_unless(condition, found)

    def _judge_evidence(
        self, files: list[Path], console: AnyConsole, condition: "Condition | None"
    ) -> None:
        """Judge published values; they come with their metrics and seeds."""
        from switch_ema.bench.judge import judge_evidence
        from switch_ema.bench.report.tables import FORMATS

        if len(self.logs) > 1 or self.unit or self.lower_is_better:
            raise UsageError(
                "judge one evidence file at a time, without --unit and directions, "
                "which it contains."
            )
        found = judge_evidence(
            files[0],
            metric=self.metric,
            baseline=self.baseline,
            smallest_effect=self.smallest_effect,
            until_decided=self.until_decided,
        )
        if self.format != "table":
            print(FORMATS[self.format](found), end="")
        else:
            for task in found.tasks:
                one = replace(found, tasks=[task])
                _show(one, console, verbose=self.verbose)
        exit_unless(condition, found)


def _show(found: "ComparisonSummary", console: AnyConsole, *, verbose: bool) -> None:
    """Print the table, as a comparison does; without rich, as plain text."""
    description = f"{printable(found.tasks[0].description).rstrip('.')}."
    if isinstance(console, PlainConsole):
        _print_plain(found.tasks[0], console, verbose=verbose)
        print_line(console, description)
        return
    from rich.text import Text

    from switch_ema.bench.report.terminal import print_comparison, print_findings

    if verbose:
        print_comparison(found, console)
    else:
        print_findings(found, console)
        console.print(Text(description, style="dim"))


def _print_plain(task: "TaskSummary", console: AnyConsole, *, verbose: bool) -> None:
    from switch_ema.bench.report.first_screen import first_screen
    from switch_ema.bench.report.notes import looks_sentence, skew_sentence
    from switch_ema.bench.report.numbers import NONE, with_unit
    from switch_ema.bench.report.rows import baseline_of, make_rows
    from switch_ema.bench.report.verdict_text import RULE, best_sentence, verdicts
    from switch_ema.bench.stats.paired import CONFIDENCE

    metric = task.metrics[0]
    print_line(console, best_sentence(task))
    baseline = baseline_of(task.results[metric.name])
    shift = f"vs {baseline} [{CONFIDENCE} CI]"
    rows = [
        (
            *(row.method, row.last),
            NONE if row.interval == NONE else f"{row.difference} {row.interval}",
            *(row.words, row.n),
        )
        for row in make_rows(task, metric)
    ]
    print_table(console, ("method", with_unit(metric), shift, "verdict", "n"), rows)
    sentences = [text for _, text in first_screen(task)]
    if verbose:
        sentences += [*(text for _, text in verdicts(task)), RULE]
    doubts = [] if verbose else [skew_sentence(task)]
    doubts.append(looks_sentence(task))
    for text in (*sentences, *filter(None, doubts), *task.problems):
        print_line(console, text)


def _check_complete(problems: list[str]) -> None:
    """Raise an error if a log was excluded, as for a failed training."""
    if problems:
        others = f" ({len(problems) - 1} more)" if problems[1:] else ""
        raise UsageError(f"some logs were excluded: {problems[0]}{others}")
