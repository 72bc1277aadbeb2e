"""A comparison made up for the tests: two tasks, nasty names, a seed that diverged."""

import json
import math
import random
from dataclasses import replace

from switch_ema.bench.stats.paired import Curves, MethodResult, compare
from switch_ema.bench.stats.summary import ComparisonSummary, Cost, TaskSummary
from switch_ema.bench.stats.verdicts import smallest_effect_of
from switch_ema.bench.task import Metric

SEEDS = range(8)
EPOCHS = 30
NASTY_TASK = "my tasks/[bold]x[/bold].py:<script>alert('t')</script>\"&amp;"
NASTY_METHOD = "ema:decay=0.9,tag=</script><img src=x onerror=alert(1)>[red]%{x}"
ACCURACY = Metric(name="accuracy", higher_is_better=True, unit="%")
LOSS = Metric(name="test loss", higher_is_better=False)
PASSIVE = ("plain", "ema", "swa", NASTY_METHOD)
# Method -> what it adds to the final accuracy, in percentage points.
DIGITS = {"plain": 0.0, "ema": 1.1, "swa": 0.15, "lookahead": -0.9, "switch-ema": 1.9}
NASTY = {"plain": 0.0, NASTY_METHOD: 0.1, "switch-ema": 0.2, "lookahead": 0.0}


def make_curves(gains: dict[str, float], *, noise: float, scale: float) -> Curves:
    """Make curves that rise quickly and end near 90, alike in the same seed."""
    draw = random.Random(0)
    curves: dict[str, dict[int, list[float]]] = {method: {} for method in gains}
    for seed in SEEDS:
        level = 90 + draw.gauss(0, noise)
        for method, gain in gains.items():
            end = level + gain + draw.gauss(0, noise / 2)
            speed = 3.0 / (1 + max(gain, 0))
            curves[method][seed] = [
                scale * (end - 70 * math.exp(-epoch / speed) + draw.gauss(0, noise / 3))
                for epoch in range(1, EPOCHS + 1)
            ]
    return curves


def make_task(name: str, gains: dict[str, float], noise: float = 0.4) -> TaskSummary:
    """Make one task's summary from curves, by the bench's own statistics."""
    accuracy = make_curves(gains, noise=noise, scale=1.0)
    loss = {
        method: {seed: [(101 - v) / 25 for v in run] for seed, run in runs.items()}
        for method, runs in make_curves(gains, noise=noise, scale=1.0).items()
    }
    costs = [Cost(tuple(m for m in gains if m in PASSIVE), 8, 12.34, 1.5, 812.0)]
    costs += [Cost((m,), 8, 12.9, 0.7, 820.0) for m in gains if m not in PASSIVE]
    return TaskSummary(
        task=name,
        description="Handwritten digits, a fifth of the labels wrong.",
        optimizer="sgd:lr=0.1,momentum=0.9",
        epochs=EPOCHS,
        metrics=(ACCURACY, LOSS),
        curves={"accuracy": accuracy, "test loss": loss},
        results={
            "accuracy": judged(accuracy, ACCURACY),
            "test loss": judged(loss, LOSS),
        },
        costs=costs,
        problems=[],
    )


def judged(curves: Curves, metric: Metric) -> list[MethodResult]:
    """Compare with plain, as a run does."""
    better, smallest = metric.higher_is_better, smallest_effect_of(metric)
    return compare(curves, higher_is_better=better, smallest_effect=smallest)


def make_diverged_task() -> TaskSummary:
    """Make a task with nasty names, on which one seed of one method diverged."""
    task = make_task(NASTY_TASK, NASTY, noise=0.6)
    curves = {metric: copy_curves(own) for metric, own in task.curves.items()}
    for own in curves.values():
        own["lookahead"][3][17:] = [math.nan] * (EPOCHS - 17)
    return replace(
        task,
        curves=curves,
        results={
            metric.name: judged(curves[metric.name], metric) for metric in task.metrics
        },
        problems=["lookahead, seed 3: the loss became nan in epoch 18 [/dim] <b>."],
        missing=2,
    )


def copy_curves(curves: Curves) -> dict[str, dict[int, list[float]]]:
    return {
        method: {seed: list(run) for seed, run in runs.items()}
        for method, runs in curves.items()
    }


def make_summary() -> ComparisonSummary:
    """Make the whole comparison."""
    tasks = [make_task("noisy-digits", DIGITS), make_diverged_task()]
    config = {"tasks": [task.task for task in tasks], "methods": [*DIGITS], "seeds": 8}
    return ComparisonSummary(
        name="digits & <i>friends</i>",
        tasks=tasks,
        config=json.dumps(config, indent=2),
        environment={"torch": "2.9.0", "machine": "x86_64, 2 cores", "git": "<dirty>"},
    )
