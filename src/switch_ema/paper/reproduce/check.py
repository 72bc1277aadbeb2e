"""Trains a published row again and compares it with the published values."""

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from math import isnan

from switch_ema.bench.compare import Watcher, run_comparison
from switch_ema.bench.errors import UsageError
from switch_ema.bench.execute.options import RunOptions
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.plan.task_snapshot import retrained
from switch_ema.bench.recipe import Metric
from switch_ema.bench.report.numbers import digits_of, fixed
from switch_ema.bench.results.evidence import Evidence, open_results
from switch_ema.bench.results.folder import arithmetic_of, open_run
from switch_ema.bench.stats.paired import (
    Curves,
    MethodResult,
    compare,
    head_to_head,
    verdict_of,
)
from switch_ema.bench.stats.summarize import summarize
from switch_ema.bench.stats.summary import TaskSummary
from switch_ema.bench.stats.verdicts import Verdict, smallest_effect_of
from switch_ema.bench.text import counted, listed

FOLDER = "check"
"""Folder of the trainings, so that stored runs are not compared with themselves."""


@dataclass(frozen=True)
class CheckedVerdict:
    """A verdict on the published values, and on those of the new trainings."""

    task: str
    metric: str
    contrast: str
    """Such as "switch-ema over plain"."""
    published: Verdict
    now: Verdict

    @property
    def is_same(self) -> bool:
        """Whether both agree."""
        return self.published == self.now


@dataclass(frozen=True)
class CheckedValue:
    """A value at the last epoch, published and now."""

    where: str
    """Metric, method, seed and task."""
    published: float
    now: float
    digits: int
    """Decimals in tables."""

    @property
    def is_equal(self) -> bool:
        """Whether both are equal in all published digits, or both not finite."""
        return f"{self.published:.8g}" == f"{self.now:.8g}"

    @property
    def is_equal_as_printed(self) -> bool:
        """Whether tables print the same."""
        shown = (fixed(value, self.digits) for value in (self.published, self.now))
        return len(set(shown)) == 1

    @property
    def distance(self) -> float:
        """Absolute difference; that of a value that is not a number is 0."""
        found = abs(self.now - self.published)
        return 0.0 if isnan(found) else found


@dataclass(frozen=True)
class RowCheck:
    """A row that was trained again."""

    verdicts: list[CheckedVerdict]
    values: list[CheckedValue]
    notes: list[str]
    """Differences between the machines that change the last digits, and more seeds
    than asked for."""

    @property
    def sentence(self) -> str:
        """How many values are equal, and the largest difference."""
        total = len(self.values)
        equal = sum(value.is_equal for value in self.values)
        printed = sum(value.is_equal_as_printed for value in self.values)
        text = f"{equal} of {counted(total, 'value')} equal in all published digits"
        if equal == total:
            return f"{text}."
        far = max(self.values, key=lambda value: value.distance)
        return (
            f"{text}, {printed} as printed in tables; the largest difference is "
            f"{far.distance:.3g}, in {far.where}: {far.published:g} published, "
            f"{far.now:g} now."
        )


def check_row(
    found: Evidence,
    options: RunOptions,
    seeds: int | None = None,
    watcher: Watcher | None = None,
) -> RowCheck:
    """Train a published comparison again and compare.

    Args:
        found: the evidence file.
        options: how to run; the trainings go to a folder of their own in ``out``.
        seeds: number of seeds, the first ones, and those that were trained as one model
            with them; None for all.
        watcher: receives progress events.

    Raises:
        UsageError: a training failed, or the recipe has changed since.
    """
    config, number = config_to_check(found, seeds)
    before = arithmetic_of(found.meta)
    place = replace(
        options,
        out=options.out / FOLDER / found.path.parent.name,
        name=found.path.stem,
        threads=options.threads or before.threads,
        keep_checkpoints="none",
    )
    run = run_comparison(config, place, watcher=watcher)
    if run.error is not None:
        raise run.error
    trained, results = open_run(run.folder)
    with closing(results):
        meta = results.meta()
        judged = replace(
            trained,
            until_decided=found.given.until_decided,
            smallest_effect=found.given.smallest_effect,
        )
        again = summarize(judged, results, found.name)
    notes = [*differences(found.meta, meta)]
    if config.seeds != number:
        last = config.first_seed + config.seeds - 1
        notes.append(
            f"Seeds {config.first_seed} to {last} were published as one model, so all "
            f"{config.seeds} were trained again."
        )
    published_config, published = open_results(found.path)
    with closing(published):
        stored = summarize(published_config, published, found.name)
    fresh = {task.title: task for task in again.tasks}
    pairs = [(task, fresh[task.title]) for task in stored.tasks if task.title in fresh]
    return RowCheck(
        [verdict for pair in pairs for verdict in _verdicts(*pair)],
        [value for pair in pairs for value in _values(*pair)],
        notes,
    )


def config_to_check(found: Evidence, seeds: int | None) -> tuple[CompareConfig, int]:
    """Return what to train again, and for how many seeds it was asked.

    Raises:
        UsageError: the recipe has changed since.
    """
    if changed := retrained(found.meta, found.config.tasks):
        raise UsageError(
            f"this version trains {listed(changed)} differently than when {found.path} "
            f"was published; check it with commit {found.meta['environment.git']}."
        )
    number = found.given.seeds if seeds is None else min(seeds, found.given.seeds)
    return _first_seeds(found.given, _whole_stacks(found, number)), number


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    """List what differs between the machines and changes the last digits."""
    there, here = arithmetic_of(before), arithmetic_of(now)
    pairs: dict[str, tuple[object, object]] = {
        "Threads": (there.threads, here.threads),
        "Averaging kernels": (there.kernels, here.kernels),
    }
    for name in ("torch", "processor", "instructions"):
        key = f"environment.{name}"
        if key in before and key in now:  # earlier versions did not store all
            pairs[name if name == "torch" else name.title()] = before[key], now[key]
    for name, (published, own) in pairs.items():
        if published != own:
            text = f"{name} {published} published, {own} now"
            yield f"{text}: the last digits may differ."


def _whole_stacks(found: Evidence, number: int) -> int:
    """Round up to all seeds of a stack, whose arithmetic depends on their number."""
    first = found.given.first_seed
    stacks = (cell.key[2] for cell in found.cells)
    ends = (1 + max(seeds) - first for seeds in stacks if min(seeds) < first + number)
    return max([number, *ends])


def _first_seeds(config: CompareConfig, number: int) -> CompareConfig:
    """Limit a configuration to its first seeds, which are trained without looks."""
    rounds = tuple(n for n in config.rounds if n < number)
    return replace(config, seeds=number, rounds=rounds, until_decided=False)


def _common(before: Curves, now: Curves) -> tuple[Curves, Curves]:
    """Keep the methods and seeds that both have."""
    shared = {
        method: [seed for seed in own if seed in now[method]]
        for method, own in before.items()
        if method in now
    }
    first, second = (
        {m: {seed: curves[m][seed] for seed in own} for m, own in shared.items()}
        for curves in (before, now)
    )
    return first, second


def _verdicts(before: TaskSummary, now: TaskSummary) -> list[CheckedVerdict]:
    """Judge both by the same seeds: each method, and Switch EMA against EMA."""
    found = []
    for metric in before.metrics:
        two = _common(before.curves[metric.name], now.curves[metric.name])
        old, new = (
            _judged(task, metric, curves)
            for task, curves in zip((before, now), two, strict=True)
        )
        found += [
            CheckedVerdict(before.title, metric.name, contrast, verdict, new[contrast])
            for contrast, verdict in old.items()
            if contrast in new
        ]
    return found


def _judged(task: TaskSummary, metric: Metric, curves: Curves) -> Mapping[str, Verdict]:
    results = task.results[metric.name]
    baseline = next(r.method for r in results if r.verdict == "baseline")
    smallest = smallest_effect_of(metric)
    judged = compare(
        curves,
        higher_is_better=metric.higher_is_better,
        baseline=baseline,
        smallest_effect=smallest,
        idle={r.method: r.idle for r in results if r.idle},
        sequential=task.sequential,
    )
    found = {
        f"{r.method} over {baseline}": r.verdict for r in judged if r.method != baseline
    }
    if (two := _switch_ema_and_ema(judged)) is not None:
        difference = head_to_head(
            curves,
            *two,
            higher_is_better=metric.higher_is_better,
            smallest_effect=smallest,
            sequential=task.sequential,
        )
        found[f"{two[0]} over {two[1]}"] = verdict_of(difference)
    return found


def _switch_ema_and_ema(results: list[MethodResult]) -> tuple[str, str] | None:
    """Return the labels of both methods if neither is the baseline or idle."""
    names = {
        r.method.partition(":")[0]: r.method
        for r in results
        if r.verdict != "baseline" and not r.idle
    }
    if {"switch-ema", "ema"} <= names.keys():
        return names["switch-ema"], names["ema"]
    return None


def _values(before: TaskSummary, now: TaskSummary) -> list[CheckedValue]:
    found = []
    for metric in before.metrics:
        digits = digits_of(metric, before.results[metric.name])
        old, new = _common(before.curves[metric.name], now.curves[metric.name])
        found += [
            CheckedValue(
                f"{metric.name} of {method}, seed {seed}, {before.title}",
                curve[-1],
                new[method][seed][-1],
                digits,
            )
            for method, own in old.items()
            for seed, curve in own.items()
        ]
    return found
