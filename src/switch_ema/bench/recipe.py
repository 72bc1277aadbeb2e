"""``Metric`` and ``Recipe``: what a task measures and how it is trained, without torch.

Both are part of a configuration, so listing tasks and planning comparisons import only
this light module. Tasks import them from ``switch_ema.bench.task``.
"""

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from switch_ema._checks import check_count, check_positive, check_range
from switch_ema.bench.errors import UsageError
from switch_ema.bench.text import listed

LATER = {"later": True}
"""Marks a field that stored runs may not have."""


_LOWER = {"loss", "error", "err", "perplexity", "ppl", "mae", "mse", "rmse", "nll"}
_LOWER |= {"fid", "fvd", "wer", "cer", "eer", "bpb", "bpc"}


def is_lower_better(metric: str) -> bool:
    """Whether lower values of a metric are better, judged by its name.

    >>> is_lower_better("eval_loss"), is_lower_better("val/Acc@1")
    (True, False)
    >>> is_lower_better("err1")
    True
    """
    return bool(_LOWER & set(re.split(r"[^a-z]+", metric.lower())))


LARGEST = 1e150
"""Squares of larger values overflow, and so do standard deviations: diverged."""


TRAINING_LOSS = "training loss"
"""Metric of final weights that comparisons measure even if the task does not."""


def is_usable(value: float) -> bool:
    """Whether a value can enter means and standard deviations.

    >>> is_usable(3.0), is_usable(float("nan")), is_usable(-1e200)
    (True, False, False)
    """
    return math.isfinite(value) and abs(value) <= LARGEST


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A measure of a model's quality."""

    name: str
    higher_is_better: bool
    unit: str = ""
    """Shown after the value, such as "%"."""
    decimals: int | None = None
    """Decimals in tables; None: chosen from the width of the intervals."""
    smallest_effect: float | None = None
    """Smallest difference that matters, in the metric's unit; None: 0.5 for metrics in
    %, otherwise 1% of the baseline's value."""

    def __post_init__(self) -> None:
        try:
            if self.decimals is not None:
                check_count("decimals", self.decimals, least=0)
            if self.smallest_effect is not None:
                check_positive("smallest_effect", self.smallest_effect)
        except ValueError as error:
            raise UsageError(f"metric {self.name}: {error}") from None


ROUNDINGS = ("bf16", "int8", "int4")
"""Roundings of the final weights that can be evaluated."""


def roundings_of(deploy: str) -> tuple[str, ...]:
    """Read a list of roundings, separated by commas; empty for an empty text.

    >>> roundings_of("bf16,int8"), roundings_of("")
    (('bf16', 'int8'), ())
    """
    kinds = tuple(kind.strip() for kind in deploy.split(",")) if deploy else ()
    if not set(kinds) <= set(ROUNDINGS) or len(set(kinds)) < len(kinds):
        raise UsageError(
            f"deploy must list some of {', '.join(ROUNDINGS)}, once each and separated "
            f"by commas, got {deploy!r}."
        )
    return kinds


def rounded_metric(metric: Metric, kind: str) -> Metric:
    """Return the metric of a model whose final weights were rounded.

    >>> rounded_metric(Metric(name="accuracy", higher_is_better=True), "int8").name
    'accuracy (int8)'
    """
    return dataclasses.replace(metric, name=f"{metric.name} ({kind})")


PRECISIONS = ("no", "bf16", "fp16", "auto")
"""Values of ``precision``."""


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """Options of a command that say how steps are computed, and how often measured."""

    accumulate: int | None = None
    """Batches per optimizer step."""
    precision: str | None = None
    """Autocast: no, bf16, fp16, or auto: bf16 on a GPU that has it, else no."""
    evaluate_every: int | None = field(default=None, metadata=LATER)
    """Epochs between two evaluations; the last epoch is always evaluated."""
    compile: bool = field(default=False, metadata=LATER)
    """Compile the model with torch.compile."""
    channels_last: bool = field(default=False, metadata=LATER)
    """Store images and convolutions in the channels_last memory format."""
    tf32: bool = field(default=False, metadata=LATER)
    """Multiply float32 matrices in TF32 on GPUs, as convolutions there do by default;
    no effect on CPUs."""

    def __post_init__(self) -> None:
        if self.precision not in (None, *PRECISIONS):
            raise UsageError(
                f"precision must be {listed(PRECISIONS, 'or')}, got {self.precision!r}."
            )


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How to train a task; the command line may override it."""

    epochs: int = 30
    schedule: str = "constant"
    """Learning rate schedule, per step: constant, step, cosine or one-cycle."""
    warmup_epochs: float = 0.0
    """Epochs of linear learning rate warm-up."""
    clip: float | None = None
    """Maximum gradient norm."""
    accumulate: int = 1
    """Batches per optimizer step."""
    precision: str = "no"
    """Autocast: no, bf16, fp16 or auto, as in :class:`StepOptions`."""
    layer_decay: float | None = None
    """Learning rate factor per layer, counted from the output."""
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Averaging options that suit the task, by method."""
    evaluate_every: int = field(default=1, metadata=LATER)
    """Epochs between two evaluations; the last epoch is always evaluated."""
    extra_epochs: int = field(default=0, metadata=LATER)
    """Epochs of ``epochs`` after the end of the schedule, at a constant rate; only a
    method with a budget, such as swa:budget=1.25, sets them."""
    revision: int = field(default=0, metadata=LATER)
    """Raised when a built-in task trains differently in a way that no other field and
    no option shows; runs of another revision are not continued."""
    deploy: str = field(default="", metadata=LATER)
    """Roundings of the final weights to evaluate as well, such as bf16,int8,int4."""
    compile: bool = field(default=False, metadata=LATER)
    """Whether the model is compiled by torch.compile."""
    channels_last: bool = field(default=False, metadata=LATER)
    """Whether images and convolutions are in the channels_last memory format."""
    tf32: bool = field(default=False, metadata=LATER)
    """Whether GPUs multiply float32 matrices in TF32."""

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
        kinds = (
            *(("schedule", str), ("precision", str), ("deploy", str)),
            ("methods", Mapping),
        )
        for name, kind in kinds:
            value = getattr(self, name)
            if not isinstance(value, kind):
                wanted = "text" if kind is str else "a dict"
                raise UsageError(f"{name} must be {wanted}, got {value!r}.")
        roundings_of(self.deploy)

    @property
    def roundings(self) -> tuple[str, ...]:
        """Kinds of rounding in ``deploy``."""
        return roundings_of(self.deploy)

    def is_evaluated(self, epoch: int) -> bool:
        """Whether the model is evaluated after an epoch, counted from 1.

        >>> recipe = Recipe(epochs=7, evaluate_every=3)
        >>> [epoch for epoch in range(1, 8) if recipe.is_evaluated(epoch)]
        [3, 6, 7]
        """
        return epoch % self.evaluate_every == 0 or epoch == self.epochs

    @property
    def scheduled_epochs(self) -> int:
        """Epochs of the learning rate schedule."""
        return self.epochs - self.extra_epochs

    @property
    def evaluations(self) -> int:
        """Number of evaluations in a whole training."""
        return math.ceil(self.epochs / self.evaluate_every)


def stored_fields(value: Any) -> dict[str, Any]:
    """Return a dataclass as a dict, without ``LATER`` fields at their defaults.

    Names of cells and runs are hashes of this dict. Leaving out new fields at their
    defaults keeps the names of runs that were stored before the fields existed.

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
