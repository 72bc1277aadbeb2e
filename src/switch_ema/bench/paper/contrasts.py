"""One method against another in a row of a table: our gain and the paper's."""

from collections.abc import Iterator
from dataclasses import dataclass

from switch_ema.bench.paper.reproduce import ReproducedRow
from switch_ema.bench.stats.paired import head_to_head, verdict_of

VERDICTS = {
    "helps": "better",
    "hurts": "worse",
    "no difference found": "undecided",
    "too few seeds": "too few seeds",
    "baseline": "baseline",
}


@dataclass(frozen=True)
class Contrast:
    """One method against another in one row: our gain and the paper's."""

    method: str
    over: str
    verdict: str
    """better, worse or undecided."""
    ours: float
    paper: float | None

    @property
    def agrees(self) -> bool | None:
        """Whether our mean has the paper's sign; None if the paper has none."""
        if not self.paper or not self.ours:
            return None
        return (self.ours > 0) == (self.paper > 0)


def contrasts_of(found: ReproducedRow) -> Iterator[Contrast]:
    """Compare each method with the row's baseline, and Switch EMA with EMA."""
    metric = found.task.metrics[0]
    row, results = found.row, found.task.results[metric.name]
    labels = {name_of(result.method): result.method for result in results}
    for result in results:
        if (difference := result.difference) is not None:
            method = name_of(result.method)
            paper, verdict = row.gain(method), VERDICTS[result.verdict]
            yield Contrast(method, row.baseline, verdict, difference.mean, paper)
    if row.baseline != "ema" and {"ema", "switch-ema"} <= labels.keys():
        difference = head_to_head(
            found.task.curves[metric.name],
            labels["switch-ema"],
            labels["ema"],
            higher_is_better=metric.higher_is_better,
        )
        if difference is not None:
            paper = row.gain("switch-ema", "ema")
            verdict = VERDICTS[verdict_of(difference)]
            yield Contrast("switch-ema", "ema", verdict, difference.mean, paper)


def name_of(label: str) -> str:
    """Leave out a method's options.

    >>> name_of("ema:decay=0.99")
    'ema'
    """
    return label.partition(":")[0]
