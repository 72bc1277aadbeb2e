"""Verdicts for programs: a JSON document with a schema, and conditions on verdicts.

The schema is ``verdict.schema.json`` beside this file. A field that is
added, is removed or changes its meaning raises ``VERSION``.
"""

import json
import math
from dataclasses import dataclass
from typing import Any

from switch_ema.bench.errors import UsageError
from switch_ema.bench.recipe import Metric
from switch_ema.bench.report.first_screen import course_of, smallest_effect
from switch_ema.bench.report.rows import baseline_of, qualified
from switch_ema.bench.report.verdict_text import best_sentence, leaders_of, troubles_of
from switch_ema.bench.stats.paired import LEVEL, Difference, MethodResult
from switch_ema.bench.stats.summary import ComparisonSummary, Cost, TaskSummary
from switch_ema.bench.stats.verdicts import JUDGED, Verdict
from switch_ema.bench.text import listed

VERSION = 2
"""Version of the document's format."""

_CONDITIONS: dict[str, frozenset[Verdict]] = {
    "helps": frozenset({"helps"}),
    "no-worse": frozenset({"helps", "no difference"}),
    "decided": frozenset(JUDGED) - {"undecided"},
    "no-difference": frozenset({"no difference"}),
    "hurts": frozenset({"hurts"}),
}
"""Names of conditions, and the verdicts that satisfy them."""


def as_json(summary: ComparisonSummary) -> str:
    """Write all verdicts with the numbers behind them, at full precision."""
    document = {
        "format": "switch-ema verdicts",
        "version": VERSION,
        "name": summary.name,
        "level": LEVEL,
        "tasks": [_task(task) for task in summary.tasks],
    }
    return f"{json.dumps(document, indent=2, allow_nan=False)}\n"


@dataclass(frozen=True)
class Condition:
    """A condition on the verdicts of a comparison, for exit codes."""

    name: str
    """One of ``_CONDITIONS``."""
    method: str = ""
    """The method that has to satisfy it; empty: see :meth:`broken_by`."""

    @classmethod
    def parse(cls, text: str) -> "Condition":
        """Parse a condition, or METHOD:condition.

        >>> Condition.parse("ema:decay=0.9:no-worse")
        Condition(name='no-worse', method='ema:decay=0.9')
        """
        method, _, name = text.rpartition(":")
        if name not in _CONDITIONS:
            raise UsageError(
                f"--fail-unless must be {listed(_CONDITIONS, 'or')}, or one of them "
                f"after a method, as in ema:helps, got {text!r}."
            )
        return cls(name, method)

    def check_method(self, methods: list[str]) -> None:
        """Refuse a method that is not compared."""
        if self.method and self.method not in methods[1:]:
            raise UsageError(
                f"--fail-unless names {self.method}, which is not compared with "
                f"{methods[0]}; the methods are {listed(methods[1:])}."
            )

    def broken_by(self, summary: ComparisonSummary) -> str:
        """Return why the condition does not hold; empty if it does.

        Every task has to satisfy it with its first metric: by the chosen method or, if
        none is chosen, "helps" by at least one method and the others by all. A baseline
        that diverged or did not learn never satisfies it.
        """
        if not summary.tasks:
            return "no baseline has finished"
        reasons = []
        for task in summary.tasks:
            results = task.results[task.metrics[0].name]
            self.check_method([result.method for result in results])
            found = {
                result.method: result.verdict
                for result in results
                if result.verdict != "baseline" and self.method in ("", result.method)
            }
            holds = [verdict in _CONDITIONS[self.name] for verdict in found.values()]
            some = self.name == "helps" and not self.method
            if troubles := troubles_of(task):
                reasons.append(f"{task.title}: {troubles[0][0]}")
            elif not (any(holds) if some else found and all(holds)):
                told = [f"{method} {verdict}" for method, verdict in found.items()]
                reasons.append(f"{task.title}: {', '.join(told) or 'nothing compared'}")
        return "; ".join(reasons)


def _task(task: TaskSummary) -> dict[str, Any]:
    return {
        "task": task.task,
        "setting": task.point,
        "sentence": best_sentence(task),
        "baseline": baseline_of(task.results[task.metrics[0].name]),
        "baseline_problems": [sentence for _, sentence in troubles_of(task)],
        "leaders": [result.method for result in leaders_of(task)],
        "metrics": [
            _metric(metric, task.results[metric.name], decides=index == 0)
            for index, metric in enumerate(task.metrics)
        ],
        "problems": task.problems,
        "missing_trainings": task.missing,
        "until_decided": task.sequential,
        "looks": list(task.looks),
        "courses": _courses(task),
        "costs": [_cost(cost) for cost in task.costs],
    }


def _courses(task: TaskSummary) -> list[dict[str, Any]]:
    """Return the course of every method's training in the metric that decides."""
    results = task.results[task.metrics[0].name]
    smallest = smallest_effect(task)
    if smallest is None:
        return []
    found = (course_of(task, result.method, smallest) for result in results)
    return [
        {
            "method": course.method,
            "state": course.state,
            "best_epoch": course.epoch,
            "best": _number(course.best),
            "last": _number(course.last),
        }
        for course in found
        if course is not None
    ]


def _cost(cost: Cost) -> dict[str, Any]:
    return {
        "methods": list(cost.methods),
        "seeds": cost.seeds,
        "train_seconds": _number(cost.train_seconds),
        "evaluate_seconds": _number(cost.evaluate_seconds),
        "processor_seconds": _number(cost.processor_seconds),
        "memory_mb": _number(cost.memory_mb),
    }


def _metric(
    metric: Metric, results: list[MethodResult], *, decides: bool
) -> dict[str, Any]:
    return {
        "name": metric.name,
        "unit": metric.unit,
        "higher_is_better": metric.higher_is_better,
        "decides": decides,
        "methods": [
            {
                "method": result.method,
                "verdict": result.verdict,
                "words": qualified(result, metric),
                "mean": _number(result.last.mean),
                "sd": _number(result.last.sd),
                "n": result.last.n,
                "difference": _difference(result.difference),
            }
            for result in results
        ],
    }


def _difference(difference: Difference | None) -> dict[str, Any] | None:
    if difference is None:
        return None
    d = difference
    numbers = {
        "mean": d.mean,
        "sd": d.sd,
        "low": d.low,
        "high": d.high,
        "p": d.p,
        "p_holm": d.p_holm,
        "detectable": d.detectable,
        "smallest_effect": d.smallest_effect,
    }
    return {"n": d.n, **{name: _number(value) for name, value in numbers.items()}}


def _number(value: float | None) -> float | None:
    """Return a number that JSON can hold; None if it is unknown or infinite."""
    return value if value is not None and math.isfinite(value) else None
