"""How a comparison was decided: what was fixed beforehand, n, and what would change it.

The section of a page that answers a sceptical reader; ``methods_paragraph.py`` says the
same for the methods section of a paper.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from switch_ema.bench.plan.config import WAITED_FOR, CompareConfig
from switch_ema.bench.recipe import Metric
from switch_ema.bench.report.numbers import NONE, digits_of, fixed, size_of, with_unit
from switch_ema.bench.report.rows import baseline_of, number_of_seeds
from switch_ema.bench.report.verdict_text import Spell
from switch_ema.bench.stats.paired import LEVEL, MethodResult
from switch_ema.bench.stats.sensitivity import (
    MOST_SEEDS,
    seeds_to_decide,
    without_one_seed,
)
from switch_ema.bench.stats.summary import ComparisonSummary, TaskSummary
from switch_ema.bench.stats.verdicts import OF_BASELINE, VERDICTS, Verdict
from switch_ema.bench.text import counted, listed, printable

_MOST_NAMED = 3
"""Seeds that are named one by one."""


@dataclass(frozen=True)
class Hinge:
    """What one verdict depends on."""

    method: str
    verdict: Verdict
    n: str
    change: str
    """A change of the numbers after which the verdict would be another one."""
    seeds: str
    """Whether it would be another one without one of the seeds."""


@dataclass(frozen=True)
class Decision:
    """How a comparison was decided."""

    rules: list[tuple[str, str]]
    """What was fixed before the data were seen, by heading."""
    hinges: list[tuple[str, list[Hinge]]]
    """What would change the verdicts, by task."""


def decision(summary: ComparisonSummary, spell: Spell) -> Decision:
    """Describe how the verdicts of a comparison were reached."""
    return Decision(
        rules=[(name, printable(text)) for name, text in _rules(summary, spell)],
        hinges=[(task.title, _hinges(task)) for task in summary.tasks],
    )


def _config(summary: ComparisonSummary) -> dict[str, Any]:
    """Read the configuration of a run; empty if there is none."""
    config = json.loads(summary.config)
    return config if isinstance(config, dict) else {}


def seeds_of(summary: ComparisonSummary) -> range:
    """Return the seeds of a run."""
    config = _config(summary)
    first = config.get("first_seed", 0)
    most = max(map(number_of_seeds, summary.tasks), default=0)
    return range(first, first + config.get("seeds", most))


def earlier_looks(summary: ComparisonSummary) -> list[int]:
    """Return the numbers of seeds that the run had before seeds were added."""
    return [*_config(summary).get("rounds", ())]


def looks_of(summary: ComparisonSummary) -> str:
    """List the looks of a run whose seeds are added until it is decided, if it is."""
    if not any(task.looks for task in summary.tasks):
        return ""
    return by_task(
        summary.tasks,
        lambda task: (
            f"{counted(len(task.looks), 'look')}, after "
            f"{listed(map(str, task.looks))} seeds"
        ),
    )


def spelled_range(seeds: range) -> str:
    """Format a range of seeds.

    >>> spelled_range(range(0, 32)), spelled_range(range(7, 8))
    ('0 to 31', '7')
    """
    return f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else str(seeds.start)


def waited_for(summary: ComparisonSummary) -> str:
    """Return what seeds were added for, as the subject of "settled"."""
    return WAITED_FOR[_config(summary).get("settle", CompareConfig.settle)]


def _stopping(summary: ComparisonSummary) -> str:
    seeds, before = len(seeds_of(summary)), earlier_looks(summary)
    if looks := looks_of(summary):
        most = _config(summary).get("max_seeds", CompareConfig.max_seeds)
        return (
            f"seeds are added until {waited_for(summary)} is settled, up to {most} "
            f"({looks}); p-values and intervals are valid at every look"
        )
    if not before:
        return f"after {counted(seeds, 'seed')}, fixed beforehand: one look"
    numbers = listed(map(str, [*before, seeds]))
    return (
        f"seeds were added to a finished run: {len(before) + 1} looks, with {numbers} "
        "seeds; p-values and intervals do not allow for the earlier ones"
    )


def metric_of(task: TaskSummary) -> str:
    """Name the metric that decides, and when."""
    metric = task.metrics[0]
    direction = "higher" if metric.higher_is_better else "lower"
    return f"{with_unit(metric)} at the last epoch, {direction} is better"


def smallest_of(task: TaskSummary) -> str:
    """Name the smallest effect of interest."""
    metric = task.metrics[0]
    results = task.results[metric.name]
    known = [r.difference.smallest_effect for r in results if r.difference]
    return size_of(known[0], metric, up=True) if known else "unknown"


def _origin(task: TaskSummary, *, given: bool) -> str:
    """Say where the smallest effect comes from; only one given may come later."""
    metric = task.metrics[0]
    if given:
        return "--smallest-effect, which can be changed after training"
    if metric.smallest_effect is not None:
        return "declared by the task"
    if metric.unit == "%":
        return "default for metrics in %"
    return f"default, {OF_BASELINE:.0%} of the baseline's value"


def _rules(summary: ComparisonSummary, spell: Spell) -> list[tuple[str, str]]:
    config = _config(summary)
    methods = list(
        dict.fromkeys(
            result.method
            for task in summary.tasks
            for result in task.results[task.metrics[0].name]
        )
    )
    baselines = {
        baseline_of(task.results[task.metrics[0].name]) for task in summary.tasks
    }
    names = [f"{spell(m)}{' (baseline)' if m in baselines else ''}" for m in methods]
    compared = counted(most_compared(summary.tasks), "method")
    unpaired = [
        f"{spell(result.method)} on {task.title}"
        for task in summary.tasks
        for result in task.results[task.metrics[0].name]
        if result.difference and result.difference.freedom
    ]
    welch = f"; Welch's unpaired test for {listed(unpaired)}" if unpaired else ""
    tuned, given = config.get("tune"), config.get("smallest_effect") is not None
    return [
        ("Seeds", f"{spelled_range(seeds_of(summary))}, the same for every method"),
        ("Methods", listed(names)),
        ("Decides", by_task(summary.tasks, metric_of)),
        (
            "Test",
            f"two-sided paired t-test{_for_looks(summary)} at the level of "
            f"{LEVEL:.0%}, Holm-corrected over "
            f"{compared}{welch}",
        ),
        (
            "Smallest effect of interest",
            by_task(
                summary.tasks,
                lambda task: f"{smallest_of(task)} ({_origin(task, given=given)})",
            ),
        ),
        (
            "Settings",
            "tuned on a validation split with other seeds"
            if tuned
            else "as given, not tuned",
        ),
        ("Stopping rule", _stopping(summary)),
    ]


def most_compared(tasks: Sequence[TaskSummary]) -> int:
    """Return the number of methods over which a task corrects its p-values."""
    found = [task.results[task.metrics[0].name] for task in tasks]
    return max((sum(r.difference is not None for r in own) for own in found), default=0)


def _for_looks(summary: ComparisonSummary) -> str:
    is_sequential = any(task.sequential for task in summary.tasks)
    return ", valid at every look," if is_sequential else ""


def by_task(
    tasks: Sequence[TaskSummary], describe: Callable[[TaskSummary], str]
) -> str:
    """Describe all tasks at once if they agree."""
    texts = {task.title: describe(task) for task in tasks}
    if len(set(texts.values())) <= 1:
        return next(iter(texts.values()), "")
    return "; ".join(f"{title}: {text}" for title, text in texts.items())


def _hinges(task: TaskSummary) -> list[Hinge]:
    metric = task.metrics[0]
    results = task.results[metric.name]
    changed = without_one_seed(
        task.curves[metric.name], results, higher_is_better=metric.higher_is_better
    )
    seeds, compared = (
        number_of_seeds(task),
        [r for r in results if r.verdict in VERDICTS],
    )
    return [
        Hinge(
            method=result.method,
            verdict=result.verdict,
            n=_n(result, seeds),
            change=_change(result, metric, len(compared), digits_of(metric, results)),
            seeds=_single_seeds(changed[result.method]),
        )
        for result in compared
    ]


def _n(result: MethodResult, seeds: int) -> str:
    if result.idle:
        return NONE
    n = result.difference.n if result.difference else 0
    return str(n) if n >= seeds else f"{n}/{seeds}"


def _change(result: MethodResult, metric: Metric, compared: int, digits: int) -> str:
    d = result.difference
    if result.idle:
        return f"options with which it acts: {result.idle}"
    if d is None:
        return "two seeds that finish"
    if result.verdict == "undecided":
        needed = seeds_to_decide(d, compared)
        if needed <= MOST_SEEDS:
            return f"about {needed:.0f} seeds, if mean and spread stay as they are"
        return f"more than {MOST_SEEDS:,} seeds, or a larger smallest effect"
    if result.verdict == "no difference":
        most = max(map(abs, d.bounds))
        return f"a smallest effect below {size_of(most, metric, up=True)}"
    if not d.sd:
        return "other signs of the differences, which hardly vary"
    half = d.mean - d.low if d.mean > 0 else d.high - d.mean
    mean = fixed(abs(d.mean), digits)
    return f"a mean difference below {size_of(half, metric)} (now {mean})"


def _single_seeds(changed: dict[int, Verdict]) -> str:
    """Name the seeds that a verdict hangs on."""
    if not changed:
        return "none"
    if len(changed) > _MOST_NAMED:
        return f"any of {len(changed)}"
    parts = [f"{seed} ({verdict} without it)" for seed, verdict in changed.items()]
    return ", ".join(parts)
