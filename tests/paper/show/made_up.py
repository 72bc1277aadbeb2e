"""Rows of the paper with results made up by hand."""

from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.stats.paired import compare
from switch_ema.bench.stats.summary import Cost, TaskSummary
from switch_ema.bench.task import Metric
from switch_ema.paper.reproduce.collect import ReproducedRow
from switch_ema.paper.tables.table import (
    PaperMetric,
    PaperRow,
    RowSetting,
    values_of,
)

ACCURACY = Metric(name="accuracy", higher_is_better=True, unit="%")
METHODS = ("plain", "ema", "switch-ema")
NOISE = {0: -0.01, 1: 0.0, 2: 0.01}
"""Small beside the differences, so that three seeds decide."""


SETTING = RowSetting(task="classification", options={"network": "resnet18"})


def paper_row(name, cells, baseline="plain"):
    printed = PaperMetric(
        metric=Metric(name="top-1", higher_is_better=True, unit="%", decimals=1),
        values=values_of(METHODS, cells),
        printed_gain=0.5,
    )
    return PaperRow(
        name=name,
        title=name.upper(),
        small=SETTING,
        paper=SETTING,
        metrics=(printed,),
        baseline=baseline,
    )


def found(row, values, *, noise=NOISE, missing=0, problems=()):
    """Make up what was found: a value per method, and a little noise."""
    curves = {
        method: {seed: [values[method] + sign * e] for seed, e in noise.items()}
        for method, sign in zip(row.methods, (1, -1, 2), strict=True)
    }
    results = compare(curves, higher_is_better=True, baseline=row.baseline)
    task = TaskSummary(
        task="classification:network=resnet18",
        description="",
        optimizer="sgd",
        epochs=7,
        metrics=(ACCURACY,),
        curves={"accuracy": curves},
        results={"accuracy": results},
        costs=[Cost(METHODS[:2], 3, 4.0, 1.0, 1.0), Cost(METHODS[2:], 3, 4.0, 0.5, 1)],
        problems=list(problems),
        missing=missing,
    )
    config = CompareConfig(tasks=(task.task,), methods=row.methods)
    return ReproducedRow(row=row, task=task, config=config)
