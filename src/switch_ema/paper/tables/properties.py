"""Table 1 of the paper: properties of methods, given as ticks; here measured.

Optimizers and averaging methods train the same task with the same seeds. A row is a
task with one optimizer and its averaging methods.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from switch_ema.bench.recipe import Metric
from switch_ema.paper.tables.table import (
    PaperMetric,
    PaperRow,
    PaperTable,
    RowSetting,
    values_of,
)


@dataclass(frozen=True, kw_only=True)
class Promise:
    """A line of the paper's table, with its training."""

    method: str
    """Our name, which also gives the colour and the display name."""
    kind: str
    optimizer: str
    """Name of the row's optimizer."""
    label: str
    """Name of the method in the row's comparison."""
    pluggable: bool
    free_gains: bool
    speed_up: bool
    property: str


@dataclass(frozen=True, kw_only=True)
class PropertyTable(PaperTable):
    """The paper's table of ticks."""

    promises: tuple[Promise, ...]
    tasks: tuple[str, ...]
    optimizers: Mapping[str, str | None]
    """By name; None is the task's own optimizer, which plain training uses."""


_METHODS: dict[str, tuple[str, ...]] = {
    "sgd": ("plain", "ema", "swa", "lookahead", "switch-ema"),
    "sasam": ("plain", "swa"),  # SASAM is SAM with SWA
}
"""Methods by optimizer, if there are others than plain training."""
_SGD = "lr=0.05,momentum=0.9"
_OPTIMIZERS: dict[str, str | None] = {
    "sgd": None,
    "sam": f"sam:{_SGD}",
    "sasam": f"sasam:{_SGD}",
    "adan": "adan:lr=1e-3",
}
_PAPER_OPTIMIZERS = {
    "sgd": None,
    "sam": "sam:lr=0.1,momentum=0.9,weight_decay=5e-4",
    "sasam": "sasam:lr=0.1,momentum=0.9,weight_decay=5e-4",
    "adan": "adan:lr=1e-3,weight_decay=0.02",
}
ROUNDING = "int4"
"""Rounding of the final weights, beside the unrounded ones."""
_TASKS = {"digits": "resnet18", "noisy-digits": "wrn28-10"}
"""At the paper's scale, a network on CIFAR-100: the paper does not name a task."""
_ACCURACY = Metric(name="accuracy", higher_is_better=True, unit="%")


def _row(task: str, network: str, optimizer: str) -> PaperRow:
    methods = _METHODS.get(optimizer, ("plain",))
    options = {"network": network, "scale": "paper"}
    return PaperRow(
        name=f"{task}-{optimizer}",
        title=f"{task}, {optimizer}",
        small=RowSetting(task=task, optimizer=_OPTIMIZERS[optimizer], deploy=ROUNDING),
        paper=RowSetting(
            task="classification",
            options={**options, "dataset": "cifar100"},
            optimizer=_PAPER_OPTIMIZERS[optimizer],
            epochs=200,
            deploy=ROUNDING,
        ),
        metrics=(
            PaperMetric(
                metric=_ACCURACY, values=values_of(methods, "- " * len(methods))
            ),
        ),
    )


def _promise(
    method: str, kind: str, row: tuple[str, str], ticks: str, promised: str
) -> Promise:
    pluggable, free_gains, speed_up = (tick == "+" for tick in ticks)
    return Promise(
        method=method,
        kind=kind,
        optimizer=row[0],
        label=row[1],
        pluggable=pluggable,
        free_gains=free_gains,
        speed_up=speed_up,
        property=promised,
    )


TABLE_1 = PropertyTable(
    name="table-1",
    title="Properties of methods: the paper's ticks and our measurements",
    family="properties",
    seeds=8,
    keeps="all",
    small_note=(
        "Two tasks: digits, and digits with 30% of the labels redrawn, where plain "
        "training over-trains. SAM and SASAM use SGD's learning rate and rho 0.05, "
        "Adan its usual 1e-3; no learning rate is tuned."
    ),
    first=tuple(f"{task}-sgd" for task in _TASKS),
    tasks=tuple(_TASKS),
    optimizers=_OPTIMIZERS,
    rows=tuple(
        _row(task, network, optimizer)
        for task, network in _TASKS.items()
        for optimizer in _OPTIMIZERS
    ),
    promises=(
        _promise("sam", "optimizer", ("sam", "plain"), "+--", "sharpness"),
        _promise("sasam", "optimizer", ("sasam", "swa"), "---", "both"),
        _promise("adan", "optimizer", ("adan", "plain"), "--+", "sharpness"),
        _promise("lookahead", "optimizer", ("sgd", "lookahead"), "+++", "sharpness"),
        _promise("swa", "regularisation", ("sgd", "swa"), "++-", "flatness"),
        _promise("ema", "regularisation", ("sgd", "ema"), "+++", "flatness"),
        _promise("switch-ema", "regularisation", ("sgd", "switch-ema"), "+++", "both"),
    ),
)
