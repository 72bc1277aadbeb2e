"""`switch-ema compare`, and the commands `report` and `runs`."""

import shlex
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from switch_ema.bench.errors import UsageError
from switch_ema.bench.execute.options import RunOptions
from switch_ema.bench.method_names import PLAIN
from switch_ema.bench.plan.config import SCRIPT_METHODS, WAITED_FOR, CompareConfig
from switch_ema.bench.spec import SCRIPT, is_script
from switch_ema.bench.text import listed, printable, read_utf8
from switch_ema.commands.output import exit_unless
from switch_ema.commands.publishing import (
    PublishOptions,
    publish_run,
    restore_run,
)

if TYPE_CHECKING:
    from switch_ema.bench.plan.cells import Cell
    from switch_ema.bench.report.machine import Condition
    from switch_ema.bench.stats.summary import ComparisonSummary

_BESIDE_CONFIG = (
    "--config repeats a stored comparison unchanged; remove the tasks and all options "
    "that affect its numbers."
)


@dataclass(frozen=True)
class Compare:
    """Test whether averaging helps: methods x seeds, paired statistics.

    Trains every method with the same seeds, initial weights and batches; prints a table
    and verdicts, and writes an HTML report. Methods that only read the weights share
    one training. Repeat the command to resume an interrupted run.

    To start with:

    - switch-ema compare
    - switch-ema compare moons --seeds 100
    - switch-ema compare digits --methods plain ema:decay=0.9 ema:decay=0.99 switch-ema
    - switch-ema compare noisy-digits --seeds 32 --sweep lr=0.0125,0.05,0.2
    - switch-ema compare noisy-digits --seeds 32 --tune lr
    - switch-ema compare path/to/file.py:MyTask --optimizer adamw:lr=1e-3
    - switch-ema compare --script "python train.py --seed {seed}" --seeds 3
    - switch-ema compare --config runs/NAME/config.json
    """

    settings: CompareConfig = field(
        default_factory=partial(CompareConfig, stack="auto")
    )
    run: RunOptions = field(default_factory=RunOptions)
    files: PublishOptions = field(default_factory=PublishOptions)
    script: str | None = None
    """Your own training command instead of tasks, such as
    "python train.py --seed {seed}"; its script calls switch_ema.trial, see
    docs/own-runs.md."""
    config: Path | None = None
    """Repeat the comparison stored in this JSON configuration."""
    verbose: bool = False
    """Print every verdict, the cost, and how verdicts are reached."""
    format: Literal["text", "json"] = "text"
    """json: print the verdicts as JSON, and everything else to standard error."""
    fail_unless: str | None = None
    """Exit with code 1 unless every task satisfies this: helps (at least one method),
    no-worse or decided (all methods); or METHOD:helps, METHOD:no-worse,
    METHOD:no-difference, METHOD:hurts, METHOD:decided."""

    def __call__(self, console: Console) -> None:
        """Run it."""
        condition = _condition(self.fail_unless)
        if self.format == "json":
            console = Console(stderr=True)
        with console.status("Loading torch and the tasks"):
            from switch_ema.bench.compare import (
                TrainingsFailed,
                first_look,
                plan_comparison,
                run_comparison,
            )
            from switch_ema.bench.fingerprints import watched
            from switch_ema.bench.plan.cells import labels_of
            from switch_ema.bench.report.machine import as_json
            from switch_ema.bench.report.terminal import print_plan, print_trials
            from switch_ema.bench.results.estimate import time_from_history
            from switch_ema.bench.results.folder import run_folder, stored_version
            from switch_ema.bench.results.looks import stored_looks, up_to_looks
            from switch_ema.bench.tuning import plan_trials
            from switch_ema.commands.progress import TalkingBar

        settings = _with_script(self.settings, self.script)
        if self.script is not None and self.run.track:
            raise UsageError("--track is for tasks; a script does its own logging.")
        if self.config is not None:
            if settings != CompareConfig(stack="auto"):
                raise UsageError(_BESIDE_CONFIG)
            settings = _stored_settings(self.config)
        elif (
            self.run.workers_per_training > 1
        ):  # data-parallel trainings run one seed at a time
            settings = replace(settings, stack="off")
        settings = first_look(settings)
        folder = run_folder(settings, self.run.out, self.run.name)
        if self.files.publish:
            restore_run(folder, self.files.evidence, settings, console)
        stored, given = stored_version(settings, folder), settings.seeds
        settings = settings.extending(stored)
        cells = plan_comparison(settings)
        if settings.until_decided:
            cells = up_to_looks(cells, stored_looks(folder), settings.first_seed)
        if self.config is None:
            _refuse_one_method(settings)
        if condition is not None:
            condition.check_method(labels_of(settings))
        print_plan(cells, console)
        if settings.tune:
            print_trials(plan_trials(settings, cells), console)
        if is_script(settings.tasks[0]):
            for sentence in watched(settings.tasks[0]):
                console.print(Text(printable(sentence), style="dim"))
        if settings.until_decided:
            console.print(_about_rounds(settings, stored))
        elif stored is not None and stored.seeds != given:
            console.print(_about_seeds(stored.seeds, given))
        console.print(_expected(time_from_history(cells, self.run.out)))
        if self.run.dry_run:
            return
        watcher = TalkingBar(console)
        run = run_comparison(settings, self.run, cells=cells, watcher=watcher)
        _show(run.summary, run.folder, console, verbose=self.verbose)
        if self.files.publish:
            publish_run(run.folder, self.files.evidence, console)
        if self.format == "json":
            print(as_json(run.summary), end="")
        if self.script is not None and run.summary.tasks:
            console.print(Text(_what_decides(run.summary), style="dim"))
        if run.error is not None:
            if isinstance(run.error, TrainingsFailed) and self.script is not None:
                _show_output(run.folder, run.error.cells[0], console)
            raise run.error
        exit_unless(condition, run.summary)


def _condition(text: str | None) -> "Condition | None":
    """Parse --fail-unless before anything is trained."""
    if text is None:
        return None
    from switch_ema.bench.report.machine import Condition

    return Condition.parse(text)


def _refuse_one_method(settings: CompareConfig) -> None:
    """Refuse to train a single method: a verdict needs a baseline and a method."""
    from switch_ema.bench.plan.cells import labels_of

    if len(labels := labels_of(settings)) == 1:
        other = "ema" if labels[0] == PLAIN else labels[0]
        raise UsageError(
            f"{labels[0]} alone has nothing to be compared with; write --methods "
            f"{PLAIN} {shlex.quote(other)}."
        )


def _about_rounds(settings: CompareConfig, stored: CompareConfig | None) -> str:
    """Say that seeds are added until the run is decided."""
    so_far = "" if stored is None else f"The run has {stored.seeds} seeds so far. "
    return (
        f"{so_far}Seeds are added in rounds of {settings.round} until "
        f"{WAITED_FOR[settings.settle]} is settled, up to {settings.max_seeds}."
    )


def _about_seeds(stored: int, given: int) -> str:
    """Say that seeds are added to a run, or that it has more than requested."""
    if given < stored:
        return f"The run already has {stored} seeds; all of them are kept and compared."
    return f"The run has {stored} seeds so far; {given - stored} are added."


def _expected(seconds: float | None) -> str:
    """Estimate the total training time on one core."""
    if seconds is None:
        return "The remaining time is shown after the first epochs."
    time = f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} minutes"
    return f"About {time} of training on one core, judging by earlier runs."


def _show(
    summary: "ComparisonSummary", folder: Path, console: Console, *, verbose: bool
) -> None:
    """Write the page of a run and print its findings, even if the page fails."""
    from switch_ema.bench.report.page import write_run_page
    from switch_ema.bench.report.terminal import print_comparison, print_findings

    if not summary.tasks:
        console.print("Nothing to compare yet: no baseline has finished.")
        return
    show = print_comparison if verbose else print_findings
    try:
        path = write_run_page(summary, folder)
    finally:
        show(summary, console)
    console.print(f"Report: {escape(str(path))}", soft_wrap=True)


def _show_output(folder: Path, cell: "Cell", console: Console) -> None:
    """Print the last lines of a script that failed, as it printed them."""
    from switch_ema.bench.execute.scripts import last_output

    path, lines = last_output(folder, cell)
    if lines:
        said = [f"The last lines of {printable(str(path))}:"]
        said += [f"  {printable(line.expandtabs())}" for line in lines]
        for line in said:
            console.print(Text(line), soft_wrap=True)


def _what_decides(summary: "ComparisonSummary") -> str:
    """State how the metrics reported by a script were interpreted."""
    first, *others = summary.tasks[0].metrics
    better = "higher" if first.higher_is_better else "lower"
    rest = f"; it also reports {listed([m.name for m in others])}" if others else ""
    return printable(f"{first.name} decides, {better} is better{rest}.")


def _with_script(settings: CompareConfig, script: str | None) -> CompareConfig:
    """Replace the default tasks and methods by a command."""
    if script is None:
        return settings
    default = CompareConfig()
    if settings.tasks != default.tasks:
        raise UsageError(
            "--script replaces the tasks; remove them from the command line."
        )
    methods = settings.methods
    return replace(
        settings,
        tasks=(f"{SCRIPT}{script}",),
        methods=SCRIPT_METHODS if methods == default.methods else methods,
        stack="off",
    )


def _stored_settings(path: Path) -> CompareConfig:
    return CompareConfig.from_json(read_utf8(path), str(path))


def refuse_beside_config(arguments: Sequence[str]) -> None:
    """Refuse options next to --config, even with their default values.

    Parsed settings do not distinguish these from options that were not given.
    """
    flags = {argument.partition("=")[0].replace("_", "-") for argument in arguments}
    ours = {"--script"}
    ours |= {f"--{setting.name.replace('_', '-')}" for setting in fields(CompareConfig)}
    if arguments[:1] == ["compare"] and "--config" in flags and flags & ours:
        raise UsageError(_BESIDE_CONFIG)


@dataclass(frozen=True)
class Report:
    """Show a stored run: text and page, or Markdown, CSV, LaTeX, JSON.

    With --format md, csv, latex or json, prints to standard output and writes no page.
    --methods-paragraph prints a paragraph for a paper and its references; with --format
    latex, it cites their BibTeX keys.
    """

    run: tyro.conf.Positional[Path]
    """Folder of the run, such as runs/NAME, or an evidence file."""
    format: Literal["page", "md", "csv", "latex", "json"] = "page"
    """Output format."""
    fail_unless: str | None = None
    """Exit with code 1 unless every task satisfies this: helps (at least one method),
    no-worse or decided (all methods); or METHOD:helps, METHOD:no-worse,
    METHOD:no-difference, METHOD:hurts, METHOD:decided."""
    methods_paragraph: bool = False
    """Print how the comparison was done as the methods section of a paper would."""
    files: PublishOptions = field(default_factory=PublishOptions)
    verbose: bool = False
    """Print every verdict, the cost, and how verdicts are reached."""

    def __call__(self, console: Console) -> None:
        """Print or write the report."""
        from switch_ema.bench.compare import summarize_run
        from switch_ema.bench.report.tables import FORMATS

        if self.methods_paragraph and self.format in ("csv", "json"):
            raise UsageError(
                f"--methods-paragraph is text; drop --format {self.format}."
            )
        condition = _condition(self.fail_unless)
        summary = summarize_run(self.run)
        if self.methods_paragraph:
            from switch_ema.bench.report.methods_paragraph import methods_paragraph

            if not summary.tasks:
                raise UsageError(
                    f"{self.run} has no finished baseline to describe yet."
                )
            print(methods_paragraph(summary, latex=self.format == "latex"), end="")
        elif self.run.is_file() and self.format == "page":
            from switch_ema.bench.report.terminal import (
                print_comparison,
                print_findings,
            )

            show = print_comparison if self.verbose else print_findings
            show(summary, console)  # a file has no folder for a page
        elif self.format == "page":
            _show(summary, self.run, console, verbose=self.verbose)
        else:
            print(FORMATS[self.format](summary), end="")
        if self.files.publish:
            publish_run(self.run, self.files.evidence, console)
        exit_unless(condition, summary)


@dataclass(frozen=True)
class Runs:
    """List the runs in a folder, newest first: time, state and verdict.

    A run is finished, failed (repeat its command to train what failed), interrupted
    (repeat its command to continue) or running.
    """

    out: Path = Path("runs")
    """Folder that contains the run folders."""

    def __call__(self, console: Console) -> None:
        """List them."""
        from switch_ema.bench.results.folder import RESULTS

        found = [_describe(file.parent) for file in self.out.glob(f"*/{RESULTS}")]
        if not found:
            console.print(
                f"No runs in {escape(str(self.out))}; switch-ema compare creates them.",
                soft_wrap=True,
            )
            return
        table = Table(title=f"Runs in {escape(str(self.out))}")
        for name in ("run", "last trained", "seeds", "state", "trained", "verdict"):
            table.add_column(name, overflow="fold")  # names are retyped from here
        for run in sorted(found, key=lambda run: run.time, reverse=True):
            when = datetime.fromtimestamp(run.time).strftime("%Y-%m-%d %H:%M")
            state = Text(run.state, _STATE_COLOURS.get(run.state.split()[-1], ""))
            best = "\n".join(map(printable, run.best.splitlines()))
            table.add_row(
                *(escape(printable(run.name)), when, run.seeds, state, run.trained),
                escape(best),
            )
        console.print(table)


_STATE_COLOURS = {"finished": "green", "failed": "red", "interrupted": "yellow"}


@dataclass(frozen=True)
class _Run:
    """A line of the list of runs."""

    name: str
    time: float
    """When its last training ended, or its file was written."""
    state: str
    seeds: str = "-"
    trained: str = "-"
    best: str = "-"


def _describe(folder: Path) -> _Run:
    """Summarise a stored run; one damaged run must not hide the others."""
    from switch_ema.bench.results.folder import RESULTS

    try:
        return _described(folder)
    except UsageError as error:
        changed = (folder / RESULTS).stat().st_mtime
        return _Run(folder.name, changed, "unreadable", best=str(error))


def _described(folder: Path) -> _Run:
    from switch_ema.bench.plan.sweep_points import load_points, plan_points
    from switch_ema.bench.plan.task_snapshot import load_facts
    from switch_ema.bench.report.verdict_text import best_of
    from switch_ema.bench.results.folder import RESULTS, is_running, open_run
    from switch_ema.bench.results.store import FINISHED
    from switch_ema.bench.stats.summarize import summarize

    settings, results = open_run(folder)
    with closing(results):
        meta, stored = results.meta(), results.statuses()
        cells = plan_points(
            settings, load_points(meta), load_facts(meta, settings.tasks)
        )
        summary = summarize(settings, results, folder.name, cells)
        time = results.last_finished() or (folder / RESULTS).stat().st_mtime
    statuses = [stored.get(cell.id) for cell in cells]
    finished = sum(status in FINISHED for status in statuses)
    failed = statuses.count("failed")
    if is_running(folder):
        state = "running"
    elif failed:
        state = f"{failed} failed"
    else:
        state = "finished" if finished == len(cells) else "interrupted"
    return _Run(
        folder.name,
        time,
        state,
        str(settings.seeds),
        f"{finished} of {len(cells)}",
        "\n".join(f"{task.task}: {best_of(task)}" for task in summary.tasks) or "-",
    )
