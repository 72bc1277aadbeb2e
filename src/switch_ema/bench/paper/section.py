"""Our numbers beside the paper's: a section of a page, and a page of Markdown."""

from collections.abc import Iterator, Sequence
from statistics import median

from switch_ema.bench.paper import PaperRow, PaperTable
from switch_ema.bench.paper.contrasts import (
    VERDICTS,
    Contrast,
    contrasts_of,
    name_of,
)
from switch_ema.bench.paper.reproduce import ReproducedRow
from switch_ema.bench.report.numbers import (
    NONE,
    digits_for,
    fixed,
    mean_and_spread,
    seconds,
    with_unit,
)
from switch_ema.bench.report.sections import AnalysisSection, Sheet
from switch_ema.bench.stats.paired import LEVEL, MethodResult
from switch_ema.bench.stats.summary import TaskSummary
from switch_ema.bench.text import counted, listed, printable

SMALL = (
    "Small networks on small data, trained for a short time: only the sign and the "
    "rough size of the gains can be compared with the paper's, and no value here is "
    "meant to be the paper's. Rows that differ in the paper by their data alone differ "
    "here by their seeds alone."
)
PROBED = (
    "Every self-supervised method is measured by a linear probe here; in the paper "
    "SimMIM, A2MIM and MAE are fine-tuned."
)
HOW = (
    "Ours: mean ± standard deviation over n seeds at the last epoch. Gains are over "
    "the row's baseline, which is plain training or, in self-supervised methods that "
    "learn from an average of themselves, EMA, as in the paper; with 95% confidence "
    "intervals of the paired differences. Better or worse: a paired t-test, corrected "
    f"over the row's methods (Holm), has p below {LEVEL:g}; otherwise undecided. "
    "Switch EMA over EMA is a test by itself."
)


def reproduction_section(
    table: PaperTable, rows: Sequence[ReproducedRow], *, scale: str, command: str
) -> AnalysisSection:
    """Set our results beside a table of the paper."""
    contrasts = [contrast for row in rows for contrast in contrasts_of(row)]
    paragraphs = [SMALL] if scale == "small" else []
    if scale == "small" and any(row.pretraining for row in table.rows):
        paragraphs.append(PROBED)
    paragraphs += [_missing_rows(table, rows), _headline(contrasts)]
    paragraphs += [*(_state(row) for row in rows), HOW if rows else ""]
    return AnalysisSection(
        key=table.name,
        title=f"{table.name.replace('-', ' ').capitalize()}: {table.title}",
        command=command,
        paragraphs=[text for text in paragraphs if text],
        sheets=[_results(table, rows), _signs(contrasts), _settings(rows)]
        if rows
        else [],
    )


def markdown_page(sections: Sequence[AnalysisSection], command: str) -> str:
    """Write sections as one page of Markdown."""
    parts = [
        "# Results beside the paper's",
        f"Made by `{command}` from the stored runs; do not edit by hand.",
    ]
    for section in sections:
        parts.append(f"## {section.title}")
        parts.append(f"`{section.command}`")
        parts += section.paragraphs
        parts += [_markdown_table(sheet) for sheet in section.sheets]
    return "\n\n".join(parts) + "\n"


def _results(table: PaperTable, rows: Sequence[ReproducedRow]) -> Sheet:
    header = ["row, method", "ours", "n", "our gain", "95% CI", "verdict"]
    header += ["paper", "its gain"]
    lines: list[list[str]] = []
    for found in rows:
        results = found.task.results[found.task.metrics[0].name]
        digits = min(2, max(1, digits_for(results)))
        lines.append([found.row.title, *[""] * (len(header) - 1)])
        for result in results:
            lines.append([*_line(found.row, result, digits, table.decimals)])
    return Sheet(
        caption="Ours beside the paper's, in % and percentage points",
        header=header,
        rows=lines,
    )


def _line(
    row: PaperRow, result: MethodResult, digits: int, decimals: int
) -> Iterator[str]:
    method, difference = name_of(result.method), result.difference
    yield printable(result.method)
    yield mean_and_spread(result.last, digits)
    yield str(result.last.n)
    yield fixed(difference.mean, digits, "+") if difference else NONE
    interval = (difference.low, difference.high) if difference else ()
    ends = ", ".join(fixed(end, digits, "+") for end in interval)
    yield f"[{ends}]" if ends else NONE
    yield VERDICTS[result.verdict]
    value, gain = row.value(method), row.gain(method)
    yield NONE if value is None else fixed(value, decimals)
    is_baseline = method == row.baseline
    yield NONE if gain is None or is_baseline else fixed(gain, decimals, "+")


def _signs(contrasts: Sequence[Contrast]) -> Sheet:
    groups: dict[tuple[str, str], list[Contrast]] = {}
    for contrast in contrasts:
        groups.setdefault((contrast.method, contrast.over), []).append(contrast)
    return Sheet(
        caption="Wins and losses, and whether the signs of the gains agree",
        header=[
            *("comparison", "rows", "ours: better / worse / undecided"),
            *("paper: better / worse / equal", "same sign as the paper"),
            *("same sign, of those decided", "our median gain", "the paper's"),
        ],
        rows=[
            [f"{method} over {over}", *_count(members)]
            for (method, over), members in groups.items()
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
    return Sheet(
        caption="What was trained",
        header=[
            *("row", "task", "optimizer", "epochs", "metric"),
            "seconds for all methods of a seed",
        ],
        rows=[
            [
                found.row.title,
                printable(found.task.task),
                found.config.optimizer or "the task's",
                str(found.task.epochs),
                with_unit(found.task.metrics[0]),
                seconds(_cost(found.task)),
            ]
            for found in rows
        ],
    )


def _cost(task: TaskSummary) -> float:
    return sum(cost.train_seconds + cost.evaluate_seconds for cost in task.costs)


def _headline(contrasts: Sequence[Contrast]) -> str:
    """Say for Switch EMA, over plain and over EMA, how often it won and lost."""
    parts = []
    for over, name in (("plain", "plain training"), ("ema", "EMA")):
        chosen = [c for c in contrasts if (c.method, c.over) == ("switch-ema", over)]
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
        return "No row of this table has been run with the present recipes."
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
