"""Numbers in Markdown pages that are computed from evidence files.

A quote names its source in comments around it, which readers of a page do not see::

    <!-- evidence/demo.jsonl | digits | ema | gain -->+0.35 [+0.09, +0.62]<!-- end -->

The parts are the file, the task, the method and what is quoted: ``value`` (mean and
standard deviation), ``gain`` over the baseline or ``gain over METHOD`` with its
interval, ``verdict`` or ``verdict over METHOD``, or ``n``. A fifth part names another
metric than the one that decides. ``FILE | table`` quotes the whole table. The sign of a
gain is positive if the method is better.
"""

import re
from pathlib import Path

from switch_ema.bench.compare import summarize_run
from switch_ema.bench.errors import UsageError
from switch_ema.bench.recipe import Metric
from switch_ema.bench.report.numbers import digits_of, fixed, mean_and_spread
from switch_ema.bench.report.tables import as_markdown
from switch_ema.bench.stats.paired import Difference, head_to_head, verdict_of
from switch_ema.bench.stats.summary import ComparisonSummary, TaskSummary
from switch_ema.bench.stats.verdicts import smallest_effect_of
from switch_ema.bench.text import ENDING

_QUOTE = re.compile(
    rf"<!-- (?P<file>[^|>]+{re.escape(ENDING)}) \| (?P<parts>[^>]+?) -->"
    r"(?P<text>.*?)<!-- end -->",
    re.DOTALL,
)
_OVER = re.compile(r"(?P<what>gain|verdict)(?: over (?P<other>.+))?")
_TABLE = "table"


def refreshed(text: str, folder: Path) -> str:
    """Return a page with all its quotes computed again.

    Args:
        text: the page.
        folder: that of the repository, which paths of evidence files start from.

    Raises:
        UsageError: a quote names a file, task, method or number that does not exist.
    """
    read: dict[str, ComparisonSummary] = {}

    def quoted(found: re.Match[str]) -> str:
        name, parts = found["file"], [p.strip() for p in found["parts"].split("|")]
        if name not in read:
            read[name] = summarize_run(folder / name)
        try:
            if parts == [_TABLE]:
                content = f"\n{as_markdown(read[name])}"
            else:
                content = _quote(read[name], *parts)
        except (KeyError, TypeError):
            raise UsageError(
                f"the quote {found['file']} | {found['parts']} names no task, method "
                "and number of this file."
            ) from None
        return f"<!-- {name} | {found['parts']} -->{content}<!-- end -->"

    return _QUOTE.sub(quoted, text)


def _quote(
    summary: ComparisonSummary, task: str, method: str, what: str, metric: str = ""
) -> str:
    """Compute one number; an unknown name is a KeyError."""
    own = {one.title: one for one in summary.tasks}[task]
    measured = {one.name: one for one in own.metrics}[metric or own.metrics[0].name]
    results = {r.method: r for r in own.results[measured.name]}
    result, digits = results[method], digits_of(measured, results.values())
    if what == "value":
        return mean_and_spread(result.last, digits)
    if what == "n":
        return str(result.last.n)
    asked = _OVER.fullmatch(what)
    if asked is None or (asked["other"] and asked["other"] not in results):
        raise KeyError(what)
    if asked["other"]:
        difference = _against(own, measured, method, asked["other"])
    else:
        difference = result.difference
    if asked["what"] == "verdict":
        return verdict_of(difference)
    return _gain(difference, digits)


def _against(
    task: TaskSummary, metric: Metric, method: str, other: str
) -> Difference | None:
    return head_to_head(
        task.curves[metric.name],
        method,
        other,
        higher_is_better=metric.higher_is_better,
        smallest_effect=smallest_effect_of(metric),
        sequential=task.sequential,
    )


def _gain(difference: Difference | None, digits: int) -> str:
    if difference is None:
        raise KeyError("too few seeds")
    mean = fixed(difference.mean, digits, "+")
    if not difference.sd:
        return mean
    ends = (fixed(end, digits, "+") for end in (difference.low, difference.high))
    return f"{mean} [{', '.join(ends)}]"
