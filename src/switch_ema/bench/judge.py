"""Statistics of a comparison from log files of any training program."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from switch_ema.bench.errors import UsageError
from switch_ema.bench.logs.naming import pair_logs
from switch_ema.bench.logs.reading import Series, as_log, read_log, shown
from switch_ema.bench.method_names import DESCRIPTIONS, PLAIN
from switch_ema.bench.recipe import Metric, is_lower_better, is_usable
from switch_ema.bench.report.tables import as_markdown
from switch_ema.bench.report.verdict_text import best_sentence
from switch_ema.bench.stats.paired import Curves, MethodResult, compare
from switch_ema.bench.stats.pairing import are_copies, only_first
from switch_ema.bench.stats.summary import ComparisonSummary, TaskSummary
from switch_ema.bench.stats.verdicts import smallest_effect_of
from switch_ema.bench.text import counted, listed

_AXES = {"epoch", "step", "global_step", "iter", "iteration", "time", "timestamp"}
_AXES |= {"wall_time", "lr", "learning_rate"}
_AXES |= {
    f"trial/{name}"
    for name in (
        *("train_seconds", "evaluate_seconds", "memory_mb"),
        *("process", "attempt", "counts_updates"),
    )
}
"""Columns that are never the metric."""


@dataclass(frozen=True)
class Judgement:
    """Result of :func:`judge`; ``str`` gives a Markdown table."""

    summary: ComparisonSummary
    """All numbers, as for a comparison."""

    @property
    def sentence(self) -> str:
        """One sentence: which method is best, by how much, how certain."""
        return best_sentence(self.summary.tasks[0])

    @property
    def results(self) -> dict[str, MethodResult]:
        """Mean, paired difference, interval and verdict of each method."""
        task = self.summary.tasks[0]
        return {r.method: r for r in task.results[task.metrics[0].name]}

    @property
    def problems(self) -> list[str]:
        """Excluded logs, one sentence each."""
        return self.summary.tasks[0].problems

    def __str__(self) -> str:
        """Return the table and the excluded logs."""
        problems = "".join(f"\n{problem}\n" for problem in self.problems)
        return as_markdown(self.summary) + problems


def judge(
    logs: Mapping[str, Iterable[str | os.PathLike[str]]],
    *,
    metric: str | None = None,
    baseline: str | None = None,
    lower_is_better: bool | None = None,
    unit: str = "",
    smallest_effect: float | None = None,
    until_decided: bool = False,
    name: str = "logs",
) -> Judgement:
    """Compare methods from the log files of their trainings, paired by seed.

    Compares the last value of each log, as ``switch-ema compare`` does: a two-sided
    paired t-test, Holm-corrected over the methods, with intervals and a verdict. Logs
    are CSV, JSON lines, JSON (Transformers' ``trainer_state.json``) or TensorBoard
    event files. A log with fewer values than the longest counts as unfinished: it is
    excluded and named.

    Args:
        logs: files by method, one per seed. They are paired by the seeds in their
            paths (``seed-3.csv``, ``seed_3/metrics.csv``), otherwise by order.
        metric: the column; by default the only one common to all logs.
        baseline: the method to compare with; by default "plain" if present, otherwise
            the first.
        lower_is_better: by default True for names of losses and errors.
        unit: shown with the values, such as "%".
        smallest_effect: smallest difference that matters, in the metric's unit; by
            default 0.5 if the unit is "%", otherwise 1% of the baseline's value.
        until_decided: make p-values and intervals valid although logs are judged again
            and again, with more seeds each time, until the verdicts are settled.
        name: title of the table.

    Returns:
        The result; ``print`` shows its table.

    Raises:
        UsageError: the logs cannot be compared.

    Example::

        print(switch_ema.judge({"plain": ["plain/0.csv", ...], "ema": [...]}))
    """
    files = {
        method: [as_log(Path(path)) for path in own] for method, own in logs.items()
    }
    series = {path: read_log(path) for own in files.values() for path in own}
    if not series:
        raise UsageError("there are no logs; give those of two methods, one per seed.")
    chosen = metric or _only_metric(series)
    curves = _Curves.of(files, series, chosen)
    usual = PLAIN if PLAIN in curves.values else next(iter(curves.values))
    wanted = baseline or usual
    if wanted not in curves.values:
        raise UsageError(
            f"no logs of the baseline {wanted!r}; the methods are "
            f"{', '.join(curves.values)}."
        )
    if len(curves.values) < 2:
        raise UsageError(
            f"all logs belong to one method, {wanted}; name the methods, as in "
            "plain=logs/a*.csv ema=logs/b*.csv."
        )
    lower = is_lower_better(chosen) if lower_is_better is None else lower_is_better
    measured = Metric(
        name=chosen,
        higher_is_better=not lower,
        unit=unit,
        smallest_effect=smallest_effect,
    )
    task = _summarized(curves, measured, wanted, name, until_decided)
    return Judgement(ComparisonSummary(name, [task], config="{}"))


def judge_evidence(
    path: Path,
    *,
    metric: str | None = None,
    baseline: str | None = None,
    smallest_effect: float | None = None,
    until_decided: bool = False,
) -> ComparisonSummary:
    """Judge the values of an evidence file, by default as they were published.

    Args:
        path: the file.
        metric: a metric of the file; by default that which decides.
        baseline: a method of the file; by default the published baseline.
        smallest_effect: smallest difference that matters, in the metric's unit.
        until_decided: see :func:`judge`.

    Raises:
        UsageError: the file has no such metric or baseline.
    """
    # A comparison needs more packages than the logs of others.
    from switch_ema.bench.compare import summarize_run

    found = summarize_run(path)
    tasks = []
    for task in found.tasks:
        known = {one.name: one for one in task.metrics}
        if metric is not None and metric not in known:
            raise UsageError(f"{path} has no {metric!r}; it has {listed(known)}.")
        chosen = known[metric] if metric is not None else task.metrics[0]
        if smallest_effect is not None:
            chosen = replace(chosen, smallest_effect=smallest_effect)
        curves, results = task.curves[chosen.name], task.results[chosen.name]
        own = next(r.method for r in results if r.verdict == "baseline")
        if baseline is not None and baseline not in curves:
            raise UsageError(
                f"{path} has no method {baseline!r}; it has {listed(curves)}."
            )
        sequential = until_decided or task.sequential
        judged = compare(
            curves,
            higher_is_better=chosen.higher_is_better,
            baseline=baseline or own,
            smallest_effect=smallest_effect_of(chosen),
            idle={r.method: r.idle for r in results if r.idle},
            sequential=sequential,
        )
        tasks.append(
            replace(
                task,
                metrics=(chosen,),
                results={chosen.name: judged},
                sequential=sequential,
            )
        )
    return replace(found, tasks=tasks, sweeps=[])


@dataclass(frozen=True)
class _Curves:
    """Logged values by method and seed."""

    values: dict[str, dict[int, list[float]]]
    paths: dict[tuple[str, int], Path]
    paired: str
    problems: list[str] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        files: Mapping[str, Sequence[Path]],
        series: Mapping[Path, Series],
        metric: str,
    ) -> "_Curves":
        own: dict[str, dict[Path, list[float]]] = {}
        for group, paths in files.items():
            for path in paths:
                for method, values in _values(group, path, series[path], metric):
                    own.setdefault(method, {})[path] = values
        seeds, paired = pair_logs({m: list(found) for m, found in own.items()})
        by_seed = {
            method: {seeds[path]: curve for path, curve in found.items()}
            for method, found in own.items()
        }
        where = {(m, seeds[path]): path for m, found in own.items() for path in found}
        return cls(by_seed, where, paired)


def _values(
    group: str, path: Path, series: Series, metric: str
) -> list[tuple[str, list[float]]]:
    """Return the values of the metric in one log, by method.

    Logs written by ``switch-ema`` hold several methods, as in ``ema/accuracy``.
    """
    if metric in series:
        return [(group, series[metric])]
    found = [
        (column.removesuffix(f"/{metric}"), values)
        for column, values in series.items()
        if _metric_of(column) == metric
    ]
    if not found:
        raise UsageError(f"{path} has no {metric!r}; it has {shown(_metrics(series))}.")
    return found


def _metric_of(column: str) -> str:
    """Strip the method from a column that ``switch-ema`` has written.

    >>> _metric_of("switch-ema_decay_0.9/accuracy"), _metric_of("val/accuracy")
    ('accuracy', 'val/accuracy')
    """
    method, _, metric = column.rpartition("/")
    return metric if re.split(r"[:@_]", method)[0] in DESCRIPTIONS else column


def _is_of_steps(column: str) -> bool:
    """Whether ``switch-ema`` wrote a column about training steps, not about methods."""
    return column.startswith("training/")


def _metrics(series: Series) -> list[str]:
    """List the metrics of a log; all columns if there is none."""
    names = {_metric_of(column) for column in series if not _is_of_steps(column)}
    return sorted(names - _AXES or names)


def _only_metric(series: Mapping[Path, Series]) -> str:
    (first, own), *others = series.items()
    common = set(_metrics(own)) - _AXES
    if not common:
        raise UsageError(f"{first} has no metric; it has {shown(_metrics(own))}.")
    for path, other in others:
        common &= set(_metrics(other))
        if not common:
            raise UsageError(
                f"the logs have no column in common: {first} has "
                f"{shown(_metrics(own))}; {path} has {shown(_metrics(other))}."
            )
    if len(common) == 1:
        return common.pop()
    raise UsageError(
        f"choose a metric; columns common to all logs: {listed(sorted(common))}."
    )


def _summarized(
    curves: _Curves, metric: Metric, baseline: str, name: str, sequential: bool
) -> TaskSummary:
    ordered = {baseline: curves.values[baseline], **curves.values}
    longest = max(len(c) for own in ordered.values() for c in own.values())
    problems = _problems(curves, ordered, metric.name, longest, baseline)
    logs = sum(map(len, ordered.values()))
    seeds: Curves = ordered
    if are_copies(ordered):
        seeds = only_first(ordered)
        problems.insert(
            0,
            "The logs of all seeds have the same values to the last digit, so they "
            "count as one and there is no verdict; does the training use its seed?",
        )
    values = counted(longest, "value")
    direction = "higher" if metric.higher_is_better else "lower"
    return TaskSummary(
        task=name,
        description=(
            f"{logs} logs with {values} of {metric.name} each ({direction} is better), "
            f"paired {curves.paired}"
        ),
        optimizer="",
        epochs=longest,
        metrics=(metric,),
        curves={metric.name: seeds},
        results={
            metric.name: compare(
                seeds,
                higher_is_better=metric.higher_is_better,
                baseline=baseline,
                smallest_effect=smallest_effect_of(metric),
                sequential=sequential,
            )
        },
        costs=[],
        problems=problems,
        sequential=sequential,
    )


def _problems(
    curves: _Curves,
    values: Mapping[str, Mapping[int, Sequence[float]]],
    metric: str,
    longest: int,
    baseline: str,
) -> list[str]:
    """List excluded logs; raise if a method would have none left."""
    problems = []
    for method, own in values.items():
        lengths = [len(curve) for curve in own.values()]
        if max(lengths) < longest:
            most = counted(max(lengths), "value")
            raise UsageError(
                f"the logs of {method} have at most {most} of {metric}, other methods "
                f"up to {longest}; compare trainings of the same length."
            )
        if not own.keys() & values[baseline].keys():
            raise UsageError(
                f"{method} and {baseline} have no seed in common: "
                f"{_spelled(own)} vs {_spelled(values[baseline])}."
            )
        for seed, curve in own.items():
            path = curves.paths[method, seed]
            if len(curve) < longest:
                problems.append(
                    f"{path} has {len(curve)} of {longest} values of {metric}; "
                    "excluded as unfinished."
                )
            elif not is_usable(curve[-1]):
                problems.append(f"{path} ends with {curve[-1]:g}; excluded.")
            elif seed not in values[baseline]:
                problems.append(
                    f"{path} is unpaired: {baseline} has no log with seed {seed}."
                )
    return problems


def _spelled(seeds: Iterable[int]) -> str:
    return listed(map(str, sorted(seeds)))
