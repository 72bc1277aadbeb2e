"""A paragraph for the methods section of a paper, with citations and BibTeX."""

import re
import textwrap
from collections.abc import Iterable, Sequence

from switch_ema.analysis.method_style import display_name
from switch_ema.bench.method_names import PLAIN
from switch_ema.bench.report.decided import (
    by_task,
    earlier_looks,
    looks_of,
    metric_of,
    most_compared,
    seeds_of,
    smallest_of,
    spelled_range,
    waited_for,
)
from switch_ema.bench.report.references import (
    EQUIVALENCE,
    HOLM,
    SEQUENTIAL,
    SKEW,
    T_TEST,
    WELCH,
    Publication,
    reference_of,
)
from switch_ema.bench.report.rows import baseline_of
from switch_ema.bench.report.tables import latex_escaped
from switch_ema.bench.stats.paired import CONFIDENCE, LEVEL, Difference
from switch_ema.bench.stats.summary import ComparisonSummary, TaskSummary
from switch_ema.bench.text import counted, listed, printable

_Parts = list["str | Publication"]
"""A text with citations."""


def methods_paragraph(summary: ComparisonSummary, *, latex: bool = False) -> str:
    """Describe the comparison as the methods section of a paper does.

    Args:
        summary: the results.
        latex: cite with BibTeX keys and escape special characters.

    Returns:
        The paragraph, and the BibTeX entries of what it cites.
    """
    parts = [
        *_compared(summary),
        *_seeds(summary),
        *_training(summary.tasks),
        *_tests(summary),
        *_software(summary),
    ]
    text = "".join(
        _cited(part, latex)
        if isinstance(part, Publication)
        else latex_escaped(printable(part))
        if latex
        else printable(part)
        for part in parts
    )
    whole = re.sub(r"\bn = (?=\d)", "n\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}", text)
    paragraph = textwrap.fill(
        " ".join(whole.split(" ")), 88, break_on_hyphens=False, break_long_words=False
    ).replace("\N{NO-BREAK SPACE}", " ")
    cited = dict.fromkeys(part for part in parts if isinstance(part, Publication))
    return "\n\n".join([paragraph, *(reference.bibtex for reference in cited)]) + "\n"


def _cited(reference: Publication, latex: bool) -> str:
    return f"\\citep{{{reference.key}}}" if latex else f"({reference.cited})"


def _compared(summary: ComparisonSummary) -> _Parts:
    """Name methods, baseline, tasks and metric."""
    results = [r for task in summary.tasks for r in task.results[task.metrics[0].name]]
    baseline = baseline_of(results)
    methods = dict.fromkeys(r.method for r in results if r.method != baseline)
    names = [_with_paper(method) for method in methods]
    tasks = listed(dict.fromkeys(task.title for task in summary.tasks))
    base = "plain training" if baseline == PLAIN else display_name(baseline)
    decides = by_task(summary.tasks, metric_of)
    return [
        "We compared ",
        *_listed(names),
        f" with {base} on {tasks}. The measure is {decides}. ",
    ]


def _with_paper(method: str) -> _Parts:
    paper, name = reference_of(method), display_name(method)
    return [name] if paper is None else [name, " ", paper]


def _listed(names: Sequence[_Parts]) -> _Parts:
    """Join texts with citations by commas and "and"."""
    joined: _Parts = []
    for index, name in enumerate(names):
        if index:
            joined.append(" and " if index == len(names) - 1 else ", ")
        joined += name
    return joined


def _seeds(summary: ComparisonSummary) -> _Parts:
    """Give seeds, pairing, n of every cell and the stopping rule."""
    seeds, before = seeds_of(summary), earlier_looks(summary)
    text = (
        f"Every method was trained with the same {counted(len(seeds), 'seed')} "
        f"({spelled_range(seeds)}), which determine initial weights, data order and "
        f"augmentation, so comparisons are paired ({_numbers(summary.tasks)}). "
    )
    if looks := looks_of(summary):
        return [
            f"{text}Seeds were added until {waited_for(summary)} was settled "
            f"({looks}); tests and intervals are valid at every look ",
            SEQUENTIAL,
            ". ",
        ]
    if before:
        return [
            f"{text}Seeds were added after looks at the results with "
            f"{listed(map(str, before))} of them, for which the tests do not allow. "
        ]
    return [f"{text}The number of seeds was fixed beforehand. "]


def _numbers(tasks: Sequence[TaskSummary]) -> str:
    """Give n, and every method that has less."""
    numbers: dict[int, list[str]] = {}
    for task in tasks:
        for result in task.results[task.metrics[0].name]:
            if result.verdict != "baseline" and not result.idle:
                n = result.difference.n if result.difference else 0
                where = f"{display_name(result.method)} on {task.title}"
                numbers.setdefault(n, []).append(where)
    if len(numbers) <= 1:
        return f"n = {next(iter(numbers), 0)} pairs"
    most = max(numbers)
    fewer = [f"n = {n} for {listed(numbers[n])}" for n in sorted(numbers) if n < most]
    why = "" if any(task.looks for task in tasks) else ", where seeds did not finish"
    return f"n = {most} pairs, except {'; '.join(fewer)}{why}"


def _training(tasks: Sequence[TaskSummary]) -> _Parts:
    """Describe networks, optimizers and the options of methods."""
    described = by_task(tasks, _recipe)
    options = {
        f"{display_name(method)}: {text}"
        for task in tasks
        for method, text in task.options.items()
        if text
    }
    text = f"Training: {described}. " if described else ""
    if options:
        text += f"Options of the methods: {'; '.join(sorted(options))}. "
    return [text]


def _recipe(task: TaskSummary) -> str:
    facts = [f"{name.lower()}: {value}" for name, value in task.facts.items()]
    return "; ".join([*facts, counted(task.epochs, "epoch")])


def _tests(summary: ComparisonSummary) -> _Parts:
    """Name the tests that were used, and only these."""
    found = [
        (result.method, task, result.difference)
        for task in summary.tasks
        for result in task.results[task.metrics[0].name]
        if result.difference is not None
    ]
    methods = f"the {counted(most_compared(summary.tasks), 'method')} of each task"
    parts: _Parts = [
        "Differences were tested with two-sided paired t-tests ",
        T_TEST,
        f" at the level {LEVEL:g}, corrected over {methods} by Holm's method ",
        HOLM,
        f"; intervals are {CONFIDENCE} confidence intervals of the mean difference, "
        "corrected alike. ",
    ]

    def where(used: Iterable[tuple[str, TaskSummary, Difference]]) -> str:
        return listed(f"{display_name(m)} on {task.title}" for m, task, _ in used)

    unpaired = [cell for cell in found if cell[2].freedom]
    if unpaired:
        parts += [
            "If trainings of one seed did not start alike, they were not paired, and "
            "Welch's test ",
            WELCH,
            f" was used ({where(unpaired)}). ",
        ]
    ties = [cell for cell in found if not cell[2].sd]
    if ties:
        parts.append(
            "If differences varied by less than the measure resolves, exact sign tests "
            f"were used ({where(ties)}). "
        )
    skewed = [cell for cell in found if cell[2].allows_for_skew]
    if skewed:
        parts += [
            "If differences were skewed against their mean, tests and intervals were "
            "adjusted by Hall's transformation ",
            SKEW,
            f" ({where(skewed)}). ",
        ]
    idle = [
        f"{display_name(result.method)} on {task.title}"
        for task in summary.tasks
        for result in task.results[task.metrics[0].name]
        if result.idle
    ]
    if idle:
        parts.append(f"Not judged, because it did not act: {listed(idle)}. ")
    smallest = by_task(summary.tasks, smallest_of)
    return [
        *parts,
        "A method was said to make no difference if the interval lay within plus or "
        f"minus the smallest effect of interest, {smallest} ",
        EQUIVALENCE,
        ". ",
    ]


def _software(summary: ComparisonSummary) -> _Parts:
    names = [name for name in ("switch-ema", "torch") if name in summary.environment]
    versions = [f"{name} {summary.environment[name]}" for name in names]
    return [f"Software: {' with '.join(versions)}." if versions else ""]
