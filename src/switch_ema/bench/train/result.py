"""What the training of a cell returns."""

from dataclasses import dataclass, field

from switch_ema.bench.train.task_checks import Trivial
from switch_ema.bench.train.values import Values


@dataclass
class CellResult:
    """What a cell has produced."""

    status: str = "done"
    message: str = ""
    values: Values = field(default_factory=dict)
    train_seconds: float = 0.0
    evaluate_seconds: float = 0.0
    memory_mb: float = 0.0
    origin: str = ""
    """Where the initial weights come from, if the task says so."""
    share: float | None = None
    """Factor of the learning rate in a control with ``lr*f``."""
    trivial: Trivial = field(default_factory=dict)
    """Values of trivial predictors, if they were asked for."""
    samples: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """Pictures of each method, by caption, as PNG files."""
    trained: dict[str, str] = field(default_factory=dict)
    """What was trained, in words: network, optimizer, batches and schedule."""
    options: dict[str, str] = field(default_factory=dict)
    """What each method's options were, those not given included."""
