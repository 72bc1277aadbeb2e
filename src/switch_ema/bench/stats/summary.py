"""Results of a comparison, as needed by reports."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import nan

from switch_ema.bench.recipe import Metric
from switch_ema.bench.results.samples import SamplePicture
from switch_ema.bench.stats.course import at_best_epochs
from switch_ema.bench.stats.paired import (
    Curves,
    Difference,
    MethodResult,
    head_to_head,
)
from switch_ema.bench.stats.verdicts import smallest_effect_of


@dataclass(frozen=True)
class Cost:
    """Cost of training one group of methods that share a trajectory."""

    methods: tuple[str, ...]
    seeds: int
    train_seconds: float
    """Mean per seed, excluding evaluation."""
    evaluate_seconds: float
    memory_mb: float
    """Size of weights, gradients, optimizer state and averages; NaN if unknown."""
    processor_seconds: float = nan
    """Mean per seed, of training and evaluation over all threads; NaN if unknown."""


@dataclass(frozen=True)
class TaskSummary:
    """One task's part of a comparison."""

    task: str
    """As typed, options included."""
    description: str
    optimizer: str
    """Empty if unknown, as for log files."""
    epochs: int
    metrics: tuple[Metric, ...]
    """The first one decides."""
    curves: Mapping[str, Curves]
    """By metric name."""
    results: Mapping[str, list[MethodResult]]
    """By metric name, in the order of the methods."""
    costs: list[Cost]
    problems: list[str]
    """Diverged or failed cells and changed files, one sentence each."""
    missing: int = 0
    """Cells not trained yet."""
    evaluate_every: int = 1
    """Epochs between two evaluations; the last epoch is always evaluated."""
    origin: str = ""
    """Source of the initial weights, if the task gives one."""
    trivial: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Values of trivial predictors, by name and metric."""
    trained: Mapping[str, str] = field(default_factory=dict)
    """Description of the training, by heading; empty in runs of earlier versions.

    The optimizer listed here is that of one of the methods.
    """
    optimizers: Mapping[str, str] = field(default_factory=dict)
    """Each method's optimizer with its settings, if known."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Each method's options, including defaults."""
    samples: tuple[SamplePicture, ...] = ()
    """Pictures generated with the first seed."""
    point: str = ""
    """In a sweep or after tuning, the setting, such as "lr = 0.05" or "tuned"."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Full names of methods that the setting has changed."""
    training_losses: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    """Training loss of the final weights by method and seed, where it was measured."""
    shares: Mapping[str, float] = field(default_factory=dict)
    """Values of f of the controls that use it."""
    sequential: bool = False
    """Whether seeds are added until the verdicts are settled, so that p-values and
    intervals must be valid at every look."""
    looks: tuple[int, ...] = ()
    """Numbers of seeds after which the task was judged, if seeds are added."""
    roundings: tuple[str, ...] = ()
    """Roundings after which the final weights were evaluated; each has a metric."""

    @property
    def title(self) -> str:
        """The task, and the setting if there are several."""
        return f"{self.task}, {self.point}" if self.point else self.task

    def against(
        self,
        method: str,
        other: str,
        metric: Metric | None = None,
        *,
        at_best: bool = False,
    ) -> Difference | None:
        """Compare two methods head to head, positive if the first is better.

        Args:
            method: the whole label of one.
            other: that of the other.
            metric: None for the one that decides.
            at_best: compare both at the best epochs of their mean curves.

        Returns:
            The difference, not corrected over methods; None with fewer than two pairs.
        """
        metric = metric or self.metrics[0]
        curves, better = self.curves[metric.name], metric.higher_is_better
        if at_best:
            curves = at_best_epochs(curves, higher_is_better=better)
        return head_to_head(
            curves,
            method,
            other,
            higher_is_better=better,
            smallest_effect=smallest_effect_of(metric),
            sequential=self.sequential,
        )

    def switch_ema_against(self, other: str) -> tuple[str, str, Difference] | None:
        """Compare Switch EMA with another method head to head, by the first metric.

        Args:
            other: its name, or its whole label.

        Returns:
            The two methods and their difference; None if one is missing, did not act
            or is the baseline (which the other comparisons include), or without pairs.
        """
        results = self.results[self.metrics[0].name]
        first, second = (
            next((r.method for r in results if _is_named(r.method, name)), "")
            for name in ("switch-ema", other)
        )
        left_out = {r.method for r in results if r.verdict == "baseline" or r.idle}
        if left_out & {first, second}:
            return None
        difference = self.against(first, second)
        return None if difference is None else (first, second, difference)

    def unsettled(self, settle: str = "every") -> list[str]:
        """Return what is undecided: methods, and Switch EMA against EMA.

        Args:
            settle: ``every``, or ``switch-ema`` for Switch EMA against EMA alone.
        """
        if settle == "switch-ema":
            return self._undecided_switches
        results = self.results[self.metrics[0].name]
        methods = [r.method for r in results if r.verdict == "undecided"]
        direct = [name for name in self._undecided_switches if name not in methods]
        return [*methods, *direct]

    @property
    def _undecided_switches(self) -> list[str]:
        """Switch EMA against EMA, if that is not settled.

        If EMA is not compared, or is the baseline, Switch EMA against the baseline.
        """
        direct = self.switch_ema_against("ema")
        if direct is not None:
            is_open = direct[2].verdict == "undecided"
            return [f"{direct[0]} against {direct[1]}"] if is_open else []
        return [
            result.method
            for result in self.results[self.metrics[0].name]
            if result.verdict == "undecided" and _is_named(result.method, "switch-ema")
        ]

    @property
    def facts(self) -> Mapping[str, str]:
        """Description of the training, listing all optimizers if they differ."""
        methods: dict[str, list[str]] = {}
        for method, optimizer in self.optimizers.items():
            methods.setdefault(optimizer, []).append(method)
        if not methods:
            return self.trained
        described = [
            optimizer if len(methods) == 1 else f"{optimizer} ({', '.join(own)})"
            for optimizer, own in methods.items()
        ]
        return {**self.trained, "Optimizer": "; ".join(described)}


def _is_named(method: str, name: str) -> bool:
    """Whether a method has this name, whatever its options if the name has none."""
    return name in (method, method.partition(":")[0])


@dataclass(frozen=True)
class Sweep:
    """One task at several settings, or before and after tuning."""

    task: str
    """As typed."""
    points: list[TaskSummary]
    """In the order of the values, without those whose baseline is unfinished."""
    is_tuned: bool = False
    """Whether the points are the untuned and the tuned comparison."""
    places: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By tuned option, such as "learning rate": the methods whose tuned value is "as
    given", or the "smallest" or "largest" tried."""

    @property
    def varies_task(self) -> bool:
        """Whether the task itself varies; then no setting is the best one."""
        return not any(point.settings for point in self.points)


@dataclass(frozen=True)
class ComparisonSummary:
    """A whole comparison."""

    name: str
    tasks: list[TaskSummary]
    """In a sweep or after tuning, each task at each setting."""
    config: str
    """The resolved configuration as JSON."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Versions, machine, git state."""
    sweeps: list[Sweep] = field(default_factory=list)
    """By task; empty unless there are several settings."""
