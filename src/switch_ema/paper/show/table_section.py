"""Our numbers beside the paper's: a section of a page, and a page of Markdown."""

from collections.abc import Iterator, Sequence
from statistics import median

from switch_ema.analysis.method_style import display_name
from switch_ema.bench.recipe import Metric
from switch_ema.bench.report.numbers import (
    NONE,
    digits_for,
    fixed,
    mean_and_spread,
    seconds,
    with_unit,
)
from switch_ema.bench.report.sections import AnalysisSection, Sheet
from switch_ema.bench.stats.paired import CONFIDENCE, LEVEL, MethodResult
from switch_ema.bench.stats.summary import TaskSummary
from switch_ema.bench.text import counted, listed, printable
from switch_ema.paper.reproduce.collect import ReproducedRow
from switch_ema.paper.show.gains import (
    VERDICTS,
    Contrast,
    MeasuredMetric,
    contrasts_of,
    measured_metrics,
)
from switch_ema.paper.tables.table import PaperMetric, PaperRow, PaperTable

SMALL = (
    "Small networks on small data, trained for minutes: only the sign and the rough "
    "size of the gains can be compared with the paper's, and no value here is meant to "
    "be the paper's."
)
HOW = (
    "Ours: mean ± standard deviation over n seeds at the last epoch. Gains are over "
    "the row's baseline, the cell that the paper sets in grey: plain training or, "
    "where EMA is part of the usual training, EMA. A positive gain is better, also "
    f"where a lower value is better; intervals are {CONFIDENCE} confidence intervals "
    "of the paired differences, corrected as p is. Better or worse: a paired t-test, "
    f"corrected over the row's methods (Holm), has p below {LEVEL:g}; otherwise "
    "undecided. Switch EMA over EMA is a test by itself."
)
NOTHING = "No row of this table has been run with the present recipes."
PERCENT = (
    "Gains in % are relative to the baseline's value; ours, with their intervals, to "
    "the baseline's mean over seeds."
)


def reproduction_section(
    table: PaperTable, rows: Sequence[ReproducedRow], *, scale: str, command: str
) -> AnalysisSection:
    """Set our results beside a table of the paper."""
    contrasts = [contrast for row in rows for contrast in contrasts_of(row)]
    paragraphs = [SMALL, table.small_note] if scale == "small" else []
    paragraphs += [_missing_rows(table, rows), headline(contrasts)]
    paragraphs += [*(_state(row) for row in rows), HOW if rows else ""]
    if rows and any(one.in_percent for row in table.rows for one in row.metrics):
        paragraphs.append(PERCENT)
    return AnalysisSection(
        key=table.name,
        title=f"{table.name.replace('-', ' ').capitalize()}: {table.title}",
        command=command,
        paragraphs=[text for text in paragraphs if text],
        sheets=[_results(table, rows), _signs(table, contrasts), _settings(rows)]
        if rows
        else [],
    )


def markdown_page(
    sections: Sequence[AnalysisSection], command: str, overall: str
) -> str:
    """Write sections as one page of Markdown; what they say together comes first."""
    parts = [
        "# Results beside the paper's",
        f"Made by `{command}` from the stored runs; do not edit by hand.",
        *([overall] if overall else []),
    ]
    for section in sections:
        parts.append(f"## {section.title}")
        parts.append(f"`{section.command}`")
        parts += section.paragraphs
        parts += [_markdown_table(sheet) for sheet in section.sheets]
    return "\n\n".join(parts) + "\n"


def _results(table: PaperTable, rows: Sequence[ReproducedRow]) -> Sheet:
    header = ["row, method", "ours", "n", "our gain", f"{CONFIDENCE} CI", "verdict"]
    header += ["paper", "its gain"]
    lines: list[list[str]] = []
    for found in rows:
        for measured in measured_metrics(found):
            title = found.row.title
            if len(found.row.metrics) > 1 or len(table.metric_names) > 1:
                title += f": {heading(measured.printed)}"
            lines.append([title, *[""] * (len(header) - 1)])
            digits = digits_in(measured)
            for result in measured.results:
                lines.append([*_line(found.row, measured, result, digits)])
            lines += _trivial(found.task, measured.ours, digits, len(header))
    caption = "Ours beside the paper's"
    if len(table.metric_names) == 1:
        caption += f": {heading(table.rows[0].metrics[0])}"
    return Sheet(caption=caption, header=header, rows=lines)


def heading(printed: PaperMetric) -> str:
    """Name a metric with its unit, its direction and the unit of the gains.

    >>> mse = Metric(name="MSE", higher_is_better=False)
    >>> heading(PaperMetric(metric=mse, values=(), in_percent=True))
    'MSE, lower is better, gains in %'
    """
    direction = "higher" if printed.metric.higher_is_better else "lower"
    text = f"{with_unit(printed.metric)}, {direction} is better"
    return f"{text}, gains in %" if printed.in_percent else text


def digits_in(measured: MeasuredMetric) -> int:
    """Return the decimals of our values: more in a metric that may be small."""
    if measured.ours.decimals is not None:
        return measured.ours.decimals
    most = 2 if measured.ours.unit == "%" else 4
    return min(most, max(1, digits_for(measured.results)))


def _line(
    row: PaperRow, measured: MeasuredMetric, result: MethodResult, digits: int
) -> Iterator[str]:
    printed, difference = measured.printed, result.difference
    method, percent = row.method_of(result.method), printed.in_percent
    yield printable(result.method)
    yield mean_and_spread(result.last, digits)
    yield str(result.last.n)
    gain, *interval = measured.gain(difference) if difference else (NONE,)
    our_digits = 2 if percent else digits
    yield gain if isinstance(gain, str) else fixed(gain, our_digits, "+")
    shown = interval if difference and difference.sd else ()
    ends = ", ".join(fixed(end, our_digits, "+") for end in shown)
    yield f"[{ends}]" if ends else NONE
    yield VERDICTS[result.verdict]
    value = printed.value(method)
    yield NONE if value is None else fixed(value, printed.decimals)
    its = None if method == row.baseline else printed.gain(method, row.baseline)
    yield NONE if its is None else fixed(its, printed.gain_decimals, "+")


def _trivial(
    task: TaskSummary, metric: Metric, digits: int, columns: int
) -> Iterator[list[str]]:
    """Add what trivial predictors reach, below the methods."""
    for name, values in task.trivial.items():
        if metric.name in values:
            value = fixed(values[metric.name], digits)
            empty = [NONE] * (columns - 2)
            yield [printable(f"without training: {name}"), value, *empty]


def _signs(table: PaperTable, contrasts: Sequence[Contrast]) -> Sheet:
    """Count over rows; metrics are counted apart, since their gains differ in size."""
    groups: dict[tuple[str, str, str], list[Contrast]] = {}
    for one in contrasts:
        groups.setdefault((one.method, one.over, one.metric), []).append(one)
    several = len(table.metric_names) > 1
    return Sheet(
        caption="Wins and losses, and whether the signs of the gains agree",
        header=[
            *("comparison", "rows", "ours: better / worse / undecided"),
            *("paper: better / worse / equal", "same sign as the paper"),
            *("same sign, of those decided", "our median gain", "the paper's"),
        ],
        rows=[
            [
                f"{display_name(method)} over {display_name(over)}"
                f"{f', {metric}' if several else ''}",
                *_count(members),
            ]
            for (method, over, metric), members in groups.items()
        ],
    )


def _count(members: Sequence[Contrast]) -> Iterator[str]:
    verdicts = [contrast.verdict for contrast in members]
    paper = [contrast.paper for contrast in members if contrast.paper is not None]
    yield str(len(members))
    yield " / ".join(str(verdicts.count(v)) for v in ("better", "worse", "undecided"))
    signs = (sum(g > 0 for g in paper), sum(g < 0 for g in paper), paper.count(0))
    yield " / ".join(map(str, signs))
    for chosen in (members, [c for c in members if c.verdict != "undecided"]):
        known = [c.agrees for c in chosen if c.agrees is not None]
        yield f"{known.count(True)} of {len(known)}"
    yield fixed(median(contrast.ours for contrast in members), 2, "+")
    yield fixed(median(paper), 2, "+") if paper else NONE


def _settings(rows: Sequence[ReproducedRow]) -> Sheet:
    stated = any(found.task.origin for found in rows)
    return Sheet(
        caption="What was trained",
        header=[
            *("row", "task", "optimizer", "epochs", "metric"),
            *(["initial weights"] if stated else []),
            "seconds for all methods of a seed",
        ],
        rows=[
            [
                found.row.title,
                printable(found.task.task),
                found.config.optimizer or "the task's",
                str(found.task.epochs),
                with_unit(found.task.metrics[0]),
                *([printable(found.task.origin) or NONE] if stated else []),
                seconds(_cost(found.task)),
            ]
            for found in rows
        ],
    )


def _cost(task: TaskSummary) -> float:
    return sum(cost.train_seconds + cost.evaluate_seconds for cost in task.costs)


def headline(contrasts: Sequence[Contrast]) -> str:
    """Say for Switch EMA, over plain and over EMA, how often it won and lost."""
    parts = []
    for over, name in (("plain", "plain training"), ("ema", "EMA")):
        wanted = ("switch-ema", over)
        chosen = [c for c in contrasts if (c.method, c.over) == wanted and c.decides]
        if chosen:
            verdicts = [contrast.verdict for contrast in chosen]
            counts = (f"{verdicts.count(v)} {v}" for v in ("better", "worse"))
            parts.append(
                f"Switch EMA over {name}, ours: {', '.join(counts)} and "
                f"{verdicts.count('undecided')} undecided of "
                f"{counted(len(chosen), 'row')}."
            )
    return " ".join(parts)


def _state(found: ReproducedRow) -> str:
    """Say what is missing from a row, and what went wrong in it."""
    problems = list(found.task.problems)
    if found.task.missing:
        missing = counted(found.task.missing, "training")
        problems.append(f"{missing} not run yet, so its numbers are preliminary.")
    return f"{found.row.title}: {' '.join(problems)}" if problems else ""


def _missing_rows(table: PaperTable, rows: Sequence[ReproducedRow]) -> str:
    """Say which rows have no results, or only some of an earlier recipe."""
    there = {found.row.name for found in rows}
    missing = [row.name for row in table.rows if row.name not in there]
    if not there:
        return NOTHING
    return f"Not run with the present recipes: {listed(missing)}." if missing else ""


def _markdown_table(sheet: Sheet) -> str:
    """Spell a table; the bar that divides cells is escaped inside of them."""
    rule = ["---", *("---:" for _ in sheet.header[1:])]
    lines = [sheet.header, rule, *sheet.rows]
    spelled = [
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |"
        for line in lines
    ]
    return "\n".join([f"**{sheet.caption}**", "", *spelled])
