"""One method against another in a row of a table: our gain and the paper's."""

from collections.abc import Iterator
from dataclasses import dataclass

from switch_ema.bench.errors import UsageError
from switch_ema.bench.recipe import Metric
from switch_ema.bench.stats.paired import (
    Difference,
    MethodResult,
    verdict_of,
)
from switch_ema.bench.stats.verdicts import Verdict
from switch_ema.paper.reproduce.collect import ReproducedRow
from switch_ema.paper.tables.table import PaperMetric


@dataclass(frozen=True)
class MeasuredMetric:
    """A metric of a row: the paper's values and ours."""

    printed: PaperMetric
    ours: Metric
    """The task's corresponding metric."""
    results: list[MethodResult]

    @property
    def scale(self) -> float:
        """Factor from our differences to gains as the paper prints them.

        1, or 100 over the absolute mean of our baseline if gains are in percent.
        """
        if not self.printed.in_percent:
            return 1.0
        base = next(r.last.mean for r in self.results if r.verdict == "baseline")
        return 100 / abs(base) if base else float("nan")

    def gain(self, difference: Difference) -> tuple[float, float, float]:
        """Return a gain and its interval; positive is better."""
        scale = self.scale
        return scale * difference.mean, scale * difference.low, scale * difference.high


@dataclass(frozen=True)
class Contrast:
    """One method against another in one row: our gain and the paper's."""

    method: str
    over: str
    verdict: Verdict
    ours: float
    """Positive is better, whatever the direction of the metric."""
    paper: float | None
    """Positive is better, too."""
    metric: str = ""
    """As named in the paper."""
    decides: bool = True
    """Whether the metric is the first of its row."""

    @property
    def agrees(self) -> bool | None:
        """Whether our gain has the paper's sign; None if the paper has none."""
        if not self.paper or not self.ours:
            return None
        return (self.ours > 0) == (self.paper > 0)


def measured_metrics(found: ReproducedRow) -> list[MeasuredMetric]:
    """Match the metrics of a row with those of its task, by name or position."""
    task = found.task
    known = {metric.name: metric for metric in task.metrics}
    pairs = []
    for position, printed in enumerate(found.row.metrics):
        name = printed.ours
        if name is None and position < len(task.metrics):
            name = task.metrics[position].name
        if name not in known and not printed.is_printed:
            continue  # stored before it was measured
        if name not in known:
            raise UsageError(
                f"{found.row.name}: {task.task} has no metric for the paper's "
                f"{printed.metric.name}; it measures {', '.join(known)}."
            )
        pairs.append(MeasuredMetric(printed, known[name], task.results[name]))
    return pairs


def contrasts_of(found: ReproducedRow) -> Iterator[Contrast]:
    """Compare each method with the row's baseline, and Switch EMA with EMA."""
    for position, measured in enumerate(measured_metrics(found)):
        yield from _contrasts(found, measured, decides=position == 0)


def _contrasts(
    found: ReproducedRow, measured: MeasuredMetric, *, decides: bool
) -> Iterator[Contrast]:
    row, printed, metric = found.row, measured.printed, measured.ours
    acted = [r.method for r in measured.results if not r.idle]
    labels = {row.method_of(method): method for method in acted}

    def contrast(
        method: str, over: str, verdict: Verdict, difference: Difference
    ) -> Contrast:
        return Contrast(
            method,
            over,
            verdict,
            measured.gain(difference)[0],
            printed.gain(method, over),
            printed.metric.name,
            decides,
        )

    for result in measured.results:
        if (difference := result.difference) is not None:
            method = row.method_of(result.method)
            yield contrast(method, row.baseline, result.verdict, difference)
    if row.baseline != "ema" and {"ema", "switch-ema"} <= labels.keys():
        difference = found.task.against(labels["switch-ema"], labels["ema"], metric)
        if difference is not None:
            verdict = verdict_of(difference)
            yield contrast("switch-ema", "ema", verdict, difference)
