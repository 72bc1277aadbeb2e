"""What a comparison found on one task: all that a report needs, and nothing else."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from switch_ema.bench.recipe import Metric
from switch_ema.bench.results.samples import SamplePicture
from switch_ema.bench.stats.paired import Curves, MethodResult


@dataclass(frozen=True)
class Cost:
    """What it took to train one group of methods (they share one trajectory)."""

    methods: tuple[str, ...]
    seeds: int
    train_seconds: float
    """Mean per seed, evaluation not counted."""
    evaluate_seconds: float
    memory_mb: float
    """Largest resident memory of the process."""


@dataclass(frozen=True)
class TaskSummary:
    """One task's part of a comparison."""

    task: str
    """As typed, options included."""
    description: str
    optimizer: str
    """Empty where it is not known, as of log files."""
    epochs: int
    metrics: tuple[Metric, ...]
    """The first one decides."""
    curves: Mapping[str, Curves]
    """By metric name."""
    results: Mapping[str, list[MethodResult]]
    """By metric name, in the order of the methods."""
    costs: list[Cost]
    problems: list[str]
    """Cells that diverged or failed, and a changed file; one sentence each."""
    missing: int = 0
    """Cells that have not been trained (yet)."""
    evaluate_every: int = 1
    """Epochs between two evaluations; the last epoch is always evaluated."""
    origin: str = ""
    """Where the initial weights come from, if the task says so."""
    trivial: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Values of trivial predictors, by their names and the metrics."""
    trained: Mapping[str, str] = field(default_factory=dict)
    """What was trained, in words, by heading; empty in runs of earlier versions.

    The optimizer here is that of one of the methods.
    """
    optimizers: Mapping[str, str] = field(default_factory=dict)
    """Each method's optimizer with its numbers, where they are known."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Each method's options, those not given included."""
    samples: tuple[SamplePicture, ...] = ()
    """Pictures that the methods have made of the first seed."""
    point: str = ""
    """In a sweep or after tuning, the setting, such as "lr = 0.05" or "tuned"."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """By method its full name, where the setting has changed it."""
    shares: Mapping[str, float] = field(default_factory=dict)
    """Factors of the learning rate of controls with ``lr*f``."""

    @property
    def title(self) -> str:
        """The task, and the setting if there are several."""
        return f"{self.task}, {self.point}" if self.point else self.task

    @property
    def facts(self) -> Mapping[str, str]:
        """What was trained, with all optimizers where those of methods differ."""
        methods: dict[str, list[str]] = {}
        for method, optimizer in self.optimizers.items():
            methods.setdefault(optimizer, []).append(method)
        if not methods:
            return self.trained
        told = [
            optimizer if len(methods) == 1 else f"{optimizer} ({', '.join(own)})"
            for optimizer, own in methods.items()
        ]
        return {**self.trained, "Optimizer": "; ".join(told)}


@dataclass(frozen=True)
class Sweep:
    """One task at several settings, or before and after tuning."""

    task: str
    """As typed."""
    points: list[TaskSummary]
    """In the order of the values; those without a finished baseline are left out."""
    is_tuned: bool = False
    """Whether the points are the untuned and the tuned comparison."""

    @property
    def varies_task(self) -> bool:
        """Whether the task itself differs, so that no setting is the best one."""
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
