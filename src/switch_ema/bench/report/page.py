"""The report of a comparison as one self-contained HTML page."""

import base64
import hashlib
import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

from switch_ema._files import write_atomically
from switch_ema.analysis.method_style import display_name
from switch_ema.bench.recipe import Metric, rounded_metric
from switch_ema.bench.report.convergence import convergence
from switch_ema.bench.report.costs import costs
from switch_ema.bench.report.decided import decision
from switch_ema.bench.report.differences import differences
from switch_ema.bench.report.figures import Figure, PageStyles
from switch_ema.bench.report.first_screen import first_screen
from switch_ema.bench.report.forest import Forest, forests
from switch_ema.bench.report.notes import (
    looks_sentence,
    missing_sentence,
    price_sentence,
    share_sentences,
    shared_cost_sentence,
    trivial_sentence,
)
from switch_ema.bench.report.numbers import (
    difference_unit,
    fixed,
    megabytes,
    seconds,
    typographic,
    with_unit,
)
from switch_ema.bench.report.page_style import page_styles
from switch_ema.bench.report.pictures import Pictures, arrange
from switch_ema.bench.report.rounding import rounding_sheets
from switch_ema.bench.report.rows import (
    Row,
    baseline_of,
    make_rows,
    number_of_seeds,
)
from switch_ema.bench.report.sections import AnalysisSection, Sheet, load_sections
from switch_ema.bench.report.sweeps import (
    sweep_figure,
    sweep_sentences,
    sweep_sheets,
    sweep_title,
)
from switch_ema.bench.report.verdict_text import (
    baseline_sentence,
    best_sentence,
    rule_for,
    verdicts,
)
from switch_ema.bench.results.folder import CONFIG, REPORT
from switch_ema.bench.stats.paired import CONFIDENCE
from switch_ema.bench.stats.summary import ComparisonSummary, Sweep, TaskSummary
from switch_ema.bench.stats.verdicts import Verdict
from switch_ema.bench.text import counted, printable


@dataclass(frozen=True)
class MetricTable:
    """The table of one metric."""

    metric: Metric
    rows: list[Row]


@dataclass(frozen=True)
class Section:
    """One task's part of the page."""

    id: str
    task: TaskSummary
    baseline: str
    seeds: int
    best: str
    forest: Forest
    answers: list[tuple[Verdict, str]]
    verdicts: list[tuple[Verdict, str]]
    baseline_sentence: str
    missing: str
    looks: str
    tables: list[MetricTable]
    """The primary metric first."""
    roundings: list[Sheet]
    """Values after rounding the final weights, one table for each rounding."""
    curves: list[Figure]
    pairs: Figure | None
    costs: Figure | None
    cost_note: str
    trivial: str
    shares: list[str]
    pictures: Pictures | None

    @property
    def figures(self) -> list[Figure]:
        """All figures of the section."""
        return [f for f in (*self.curves, self.pairs, self.costs) if f is not None]


@dataclass(frozen=True)
class _SweepPart:
    """The settings of one task side by side."""

    id: str
    title: str
    sentences: list[tuple[Verdict, str]]
    sheets: list[Sheet]
    figure: Figure | None

    @classmethod
    def of(cls, sweep: Sweep, styles: PageStyles, key: str) -> "_SweepPart":
        """Build the part of one sweep."""
        return cls(
            id=key,
            title=sweep_title(sweep),
            sentences=sweep_sentences(sweep, display_name),
            sheets=sweep_sheets(sweep, display_name),
            figure=sweep_figure(sweep, styles, f"{key}-figure"),
        )


def write_page(
    summary: ComparisonSummary,
    path: Path,
    *,
    command: str | None = None,
    analyses: Sequence[AnalysisSection] = (),
) -> Path:
    """Write the report.

    The page makes no requests; its content security policy enforces this. The file is
    replaced atomically: a reader never sees half a page.

    Args:
        summary: the results.
        path: the file to write; its folder is created if necessary.
        command: the command that repeats the comparison; by default one with its
            tasks, completed by the settings shown on the page.
        analyses: sections about the same run, shown after its results.

    Returns:
        The path.
    """
    return _write(render_page(summary, command=command, analyses=analyses), path)


def write_run_page(summary: ComparisonSummary, folder: Path) -> Path:
    """Write the page of a run into its folder, including its analyses."""
    command = shlex.join(["switch-ema", "compare", "--config", str(folder / CONFIG)])
    analyses = load_sections(folder)
    return write_page(summary, folder / REPORT, command=command, analyses=analyses)


def write_analysis_page(
    title: str, sections: Sequence[AnalysisSection], path: Path
) -> Path:
    """Write a page with analyses only, with the same guarantees."""
    template = _environment().get_template("analysis.html.jinja")
    style = Markup(_resource("style.css"))
    return _write(template.render(title=title, sections=sections, style=style), path)


def _write(text: str, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_atomically(path, text)


def render_page(
    summary: ComparisonSummary,
    *,
    command: str | None = None,
    analyses: Sequence[AnalysisSection] = (),
) -> str:
    """Return the report as HTML."""
    styles = page_styles(summary.tasks)
    sections = [
        _section(task, styles, plot, f"task-{number}")
        for number, (task, plot) in enumerate(
            zip(summary.tasks, forests(summary.tasks, styles), strict=True), 1
        )
    ]
    parts = [
        _SweepPart.of(sweep, styles, f"sweep-{number}")
        for number, sweep in enumerate(summary.sweeps, 1)
        if sweep.points
    ]
    figures = [figure for part in sections for figure in part.figures]
    figures += [part.figure for part in parts if part.figure is not None]
    drawn = [figure.for_plotly() for figure in figures]
    plotly, script = get_plotlyjs(), _resource("page.js")
    template = _environment().get_template("template.html.jinja")
    return template.render(
        summary=summary,
        sections=sections,
        sweeps=parts,
        analyses=analyses,
        styles=styles,
        decision=decision(summary, display_name),
        rule=rule_for(summary.tasks),
        confidence=CONFIDENCE,
        command=command or shlex.join(["switch-ema", "compare", *_tasks(summary)]),
        command_is_complete=command is not None,
        style=Markup(_resource("style.css")),
        plotly=Markup(plotly),
        script=Markup(script),
        script_hashes=Markup(f"{_hash(plotly)} {_hash(script)}"),
        figures=_json_for_html(drawn),
    )


def _section(
    task: TaskSummary, styles: PageStyles, forest: Forest, key: str
) -> Section:
    decisive = task.metrics[0]
    several = len(task.results[decisive.name]) > 1
    rounded = [rounded_metric(decisive, kind) for kind in task.roundings]
    return Section(
        id=key,
        task=task,
        baseline=baseline_of(task.results[decisive.name]),
        seeds=number_of_seeds(task),
        best=best_sentence(task, display_name),
        forest=forest,
        answers=_answers(task),
        verdicts=verdicts(task, display_name),
        baseline_sentence=baseline_sentence(task, display_name),
        missing=missing_sentence(task),
        looks=looks_sentence(task),
        tables=[
            MetricTable(metric, make_rows(task, metric)) for metric in task.metrics
        ],
        roundings=rounding_sheets(task),
        curves=[
            convergence(task, metric, styles, f"{key}-curve-{number}")
            for number, metric in enumerate(task.metrics, 1)
            if metric not in rounded  # measured at the last epoch only
        ],
        pairs=differences(task, decisive, styles, f"{key}-pairs") if several else None,
        costs=costs(task, f"{key}-costs") if len(task.costs) > 1 else None,
        cost_note=shared_cost_sentence(task, display_name),
        trivial=trivial_sentence(task),
        shares=share_sentences(task, display_name),
        pictures=arrange(task.samples),
    )


def _answers(task: TaskSummary) -> list[tuple[Verdict, str]]:
    """Answer a reviewer's questions; the last one is the price of the verdicts."""
    price = price_sentence(task, display_name)
    paid: list[tuple[Verdict, str]] = [("baseline", price)] if price else []
    return [*first_screen(task, display_name), *paid]


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("switch_ema.bench", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "breakable": _breakable,
        "counted": counted,
        "difference_unit": difference_unit,
        "display": display_name,
        "fixed": fixed,
        "printable": printable,
        "megabytes": megabytes,
        "seconds": seconds,
        "typographic": typographic,
        "with_code": _with_code,
        "with_unit": with_unit,
    }
    return environment


def _breakable(text: str) -> Markup:
    """Allow line breaks in a long name after a colon or comma."""
    escaped = str(escape(text))
    return Markup(re.sub(r"([:,])", r"\1<wbr>", escaped))


def _with_code(text: str) -> Markup:
    """Mark what can be typed: options, and methods that return their best average."""
    typed = r"--[a-z][\w-]*( lr\b)?|[\w-]+\+best\b"
    return Markup(re.sub(typed, r"<code>\g<0></code>", str(escape(text))))


def _resource(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _tasks(summary: ComparisonSummary) -> list[str]:
    """Name each task once, even if compared with several optimizers."""
    return list(dict.fromkeys(printable(task.task) for task in summary.tasks))


def _hash(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _json_for_html(value: object) -> Markup:
    """Serialize JSON that cannot close the enclosing script element."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)
