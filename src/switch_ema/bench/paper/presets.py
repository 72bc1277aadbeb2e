"""From a row of a table to the comparison that trains it, small or as in the paper."""

from dataclasses import dataclass
from typing import Any, Literal

from switch_ema.bench.errors import UsageError
from switch_ema.bench.paper.selfsupervised import SELF_TEACHING
from switch_ema.bench.paper.tables import PaperRow
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.spec import Spec

SCALES = ("small", "paper")

DECAYS: dict[tuple[str, str], tuple[float, float]] = {
    ("cifar100", "classification"): (0.99, 0.99),
    ("cifar100", "contrastive"): (0.999, 0.999),
    ("cifar100", "masked"): (0.9, 0.999),
    ("stl10", "contrastive"): (0.9999, 0.999),
    ("stl10", "masked"): (0.999, 0.999),
    ("imagenet", "classification"): (0.9999, 0.999),
    ("imagenet", "contrastive"): (0.99996, 0.9999),
    ("imagenet", "masked"): (0.999, 0.999),
}
"""Of EMA and of Switch EMA, by data and kind of training: the paper's Table A1."""

FIRST_SEEDS = {"cifar100": 0, "stl10": 100, "imagenet": 200}
"""At the small scale, where rows that differ by their data alone share the data."""

_MASKED = ("simmim", "a2mim", "mae")


@dataclass(frozen=True, kw_only=True)
class RowSettings:
    """How rows are trained; with the row, all that the numbers depend on."""

    scale: Literal["small", "paper"] = "small"
    """Small networks on small data, or the paper's networks, data and epochs."""
    seeds: int = 3
    """How many trainings of each method."""
    epochs: int | None = None
    """Length of a training; by default the scale's own."""
    dataset: str | None = None
    """Of the small scale: cifar10, for instance; by default embedded digits."""

    def __post_init__(self) -> None:
        if self.scale not in SCALES:
            raise UsageError(
                f"scale must be {' or '.join(SCALES)}, got {self.scale!r}."
            )
        if self.scale == "paper" and self.dataset is not None:
            raise UsageError(
                "dataset is for the small scale, since each row of the paper has its "
                f"own; got {self.dataset!r}."
            )


def row_config(row: PaperRow, settings: RowSettings) -> CompareConfig:
    """Return the comparison of all methods of a row, the row's baseline first.

    At the paper's scale it names the paper's network, data, epochs, decays and, of
    masked methods, that they are fine-tuned. At the small scale, where that would take
    most of the time, it is the network's small sibling and the rest is the task's own.
    """
    options: dict[str, Any] = {"network": row.network, "scale": settings.scale}
    if row.procedure:
        options["procedure"] = row.procedure
    methods, epochs, dataset = row.methods, settings.epochs, settings.dataset
    if settings.scale == "paper":
        methods = tuple(_with_decay(row, method) for method in row.methods)
        epochs, dataset = epochs or row.epochs, row.dataset
        if kind_of(row) == "masked":
            options["protocol"] = "fine-tune"
        if row.pretraining:
            # Once, at the end: on ImageNet it may take longer than an epoch.
            options["protocol_every"] = epochs
    if dataset is not None:
        options["dataset"] = dataset
    return CompareConfig(
        tasks=(str(Spec(row.pretraining or "classification", options)),),
        methods=methods,
        seeds=settings.seeds,
        first_seed=0 if settings.scale == "paper" else FIRST_SEEDS[row.dataset],
        epochs=epochs,
    )


def kind_of(row: PaperRow) -> str:
    """Say how a row is trained: classification, contrastive or masked."""
    if not row.pretraining:
        return "classification"
    return "masked" if row.pretraining in _MASKED else "contrastive"


def _with_decay(row: PaperRow, method: str) -> str:
    # A teacher's decay rises along a schedule of the method's own, which the task has.
    if method not in ("ema", "switch-ema") or row.pretraining in SELF_TEACHING:
        return method
    ema, switch_ema = DECAYS[row.dataset, kind_of(row)]
    return str(Spec(method, {"decay": ema if method == "ema" else switch_ema}))
