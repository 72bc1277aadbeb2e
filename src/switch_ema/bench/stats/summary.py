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
    """What was trained, in words, by heading; empty in runs of earlier versions."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Each method's options, those not given included."""
    samples: tuple[SamplePicture, ...] = ()
    """Pictures that the methods have made of the first seed."""


@dataclass(frozen=True)
class ComparisonSummary:
    """A whole comparison."""

    name: str
    tasks: list[TaskSummary]
    config: str
    """The resolved configuration as JSON."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Versions, machine, git state."""
