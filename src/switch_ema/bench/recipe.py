"""What is measured and how a task is trained: words that need no torch.

``Metric`` and ``Recipe`` are part of a configuration, so listing tasks and planning a
comparison import this module and nothing heavy. Tasks import both from
``switch_ema.bench.task``.
"""

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from switch_ema._checks import check_count, check_positive, check_range
from switch_ema.bench.errors import UsageError

LATER = {"later": True}
"""Metadata of a field that was added after runs had been stored without it."""


_LOWER = {"loss", "error", "err", "perplexity", "ppl", "mae", "mse", "rmse", "nll"}
_LOWER |= {"fid", "fvd", "wer", "cer", "eer", "bpb", "bpc"}


def is_lower_better(metric: str) -> bool:
    """Tell by its name whether a metric is better when it is lower.

    >>> is_lower_better("eval_loss"), is_lower_better("val/Acc@1")
    (True, False)
    >>> is_lower_better("err1")
    True
    """
    return bool(_LOWER & set(re.split(r"[^a-z]+", metric.lower())))


LARGEST = 1e150
"""Beyond it squares, and so standard deviations, are infinite: as good as diverged."""


def is_usable(value: float) -> bool:
    """Tell a value that means and spreads can be made of.

    >>> is_usable(3.0), is_usable(float("nan")), is_usable(-1e200)
    (True, False, False)
    """
    return math.isfinite(value) and abs(value) <= LARGEST


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A number that tells how good a model is."""

    name: str
    higher_is_better: bool
    unit: str = ""
    """Shown behind the value, such as "%"."""
    decimals: int | None = None
    """Decimals of the values in tables; None: as many as the intervals deserve."""

    def __post_init__(self) -> None:
        if self.decimals is not None:
            try:
                check_count("decimals", self.decimals, least=0)
            except ValueError as error:
                raise UsageError(f"metric {self.name}: {error}") from None


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a task is trained, unless the command line says otherwise."""

    epochs: int = 30
    schedule: str = "constant"
    """Schedule of the learning rate, per step: constant, step, cosine or one-cycle."""
    warmup_epochs: float = 0.0
    """Linear warm-up of the learning rate at the beginning."""
    clip: float | None = None
    """Largest norm of the gradients."""
    accumulate: int = 1
    """Batches per optimizer step."""
    precision: str = "no"
    """Autocast: no, bf16 or fp16."""
    layer_decay: float | None = None
    """Factor of the learning rate per layer, counted from the output."""
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Options of averaging methods that suit the task, by method name."""
    evaluate_every: int = field(default=1, metadata=LATER)
    """Epochs between two evaluations; the last epoch is always evaluated."""

    def __post_init__(self) -> None:
        try:
            for name in ("epochs", "accumulate", "evaluate_every"):
                check_count(name, getattr(self, name))
            check_range("warmup_epochs", self.warmup_epochs, 0, math.inf)
            for name in ("clip", "layer_decay"):
                if getattr(self, name) is not None:
                    check_positive(name, getattr(self, name))
        except ValueError as error:
            raise UsageError(str(error)) from None
        kinds = (("schedule", str), ("precision", str), ("methods", Mapping))
        for name, kind in kinds:
            value = getattr(self, name)
            if not isinstance(value, kind):
                wanted = "text" if kind is str else "a dict"
                raise UsageError(f"{name} must be {wanted}, got {value!r}.")

    def is_evaluated(self, epoch: int) -> bool:
        """Tell whether the model is evaluated after an epoch, counted from 1.

        >>> recipe = Recipe(epochs=7, evaluate_every=3)
        >>> [epoch for epoch in range(1, 8) if recipe.is_evaluated(epoch)]
        [3, 6, 7]
        """
        return epoch % self.evaluate_every == 0 or epoch == self.epochs

    @property
    def evaluations(self) -> int:
        """How often the model is evaluated in a whole training."""
        return math.ceil(self.epochs / self.evaluate_every)


def stored_fields(value: Any) -> dict[str, Any]:
    """Return a dataclass as a dict, without later fields that have their default.

    Names of cells and of runs are hashes of this dict. A field that is added later is
    marked with the metadata ``LATER`` and is left out while it has its default, so that
    runs that were stored before the field existed keep their names.

    >>> "evaluate_every" in stored_fields(Recipe())
    False
    >>> stored_fields(Recipe(evaluate_every=5))["evaluate_every"]
    5
    """
    found = dataclasses.asdict(value)
    for item in dataclasses.fields(value):
        own = getattr(value, item.name)
        if item.metadata.get("later") and own == item.default:
            del found[item.name]
        elif dataclasses.is_dataclass(own):
            found[item.name] = stored_fields(own)
    return found
