"""Results of a comparison, as needed by reports."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import nan

from switch_ema.bench.recipe import Metric
from switch_ema.bench.results.samples import SamplePicture
from switch_ema.bench.stats.paired import Curves, MethodResult


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
    shares: Mapping[str, float] = field(default_factory=dict)
    """Learning-rate factors of controls with ``lr*f``."""

    @property
    def title(self) -> str:
        """The task, and the setting if there are several."""
        return f"{self.task}, {self.point}" if self.point else self.task

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


@dataclass(frozen=True)
class Sweep:
    """One task at several settings, or before and after tuning."""

    task: str
    """As typed."""
    points: list[TaskSummary]
    """In the order of the values, without those whose baseline is unfinished."""
    is_tuned: bool = False
    """Whether the points are the untuned and the tuned comparison."""
    tuned_option: str = ""
    """What was tuned, such as "learning rate"."""
    places: Mapping[str, str] = field(default_factory=dict)
    """Methods whose tuned value is "as given", or the "smallest" or "largest" tried."""

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
