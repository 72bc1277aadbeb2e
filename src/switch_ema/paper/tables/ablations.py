"""The paper's ablations: the switching interval (Table 13) and the decay (Figure 5).

Each varies one option on tasks of other tables. The tasks are its rows, and the
settings of the option are its methods.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from switch_ema.bench.spec import parse_spec
from switch_ema.paper.tables.table import (
    PaperMetric,
    PaperRow,
    PaperTable,
    values_of,
)


@dataclass(frozen=True, kw_only=True)
class Ablation(PaperTable):
    """One option of one or two methods, varied on several tasks."""

    option: str
    """Name of the option, such as switch_every."""
    symbol: str
    """The paper's symbol."""
    shown: Literal["heat map", "curves"]
    """How it is drawn: gains over the baseline by task and setting, or each task's
    metric against the option."""

    def setting_of(self, method: str) -> tuple[str, float] | None:
        """Return the method's name and the value of the option; None if not varied.

        >>> FIGURE = Ablation(
        ...     name="x", title="", rows=(), option="decay", symbol="d", shown="curves"
        ... )
        >>> FIGURE.setting_of("ema:decay=0.9"), FIGURE.setting_of("plain")
        (('ema', 0.9), None)
        """
        spec = parse_spec(method)
        value = spec.options.get(self.option)
        return None if value is None else (spec.name, float(value))


_INTERVALS = tuple(
    f"switch-ema:switch_every={value}" for value in ("0.5", "1", "2", "5")
)
DECAYS = {
    "ema": ("0.9", "0.99", "0.999", "0.9999"),
    "switch-ema": ("0.99", "0.999", "0.9999", "0.99999"),
}
"""The ranges of Figure 5."""
_OWN_SEEDS = 300
"""Distance of the first seed from that of the other table."""
_SAME_TASKS = (
    "The tasks are those of other tables, on other seeds; networks of Tables 2 and 3 "
    "are trained without augmentation until they fit their images."
)
_SMALL_DECAYS = ("0.5", "0.8", "0.95", "0.98")
"""Decays of both at the small scale, where an epoch has tens of steps, not hundreds."""


def make_table_13(tables: Mapping[str, PaperTable]) -> Ablation:
    """Build the ablation of the interval from rows of other tables."""

    def row(table: str, name: str, title: str, cells: str) -> PaperRow:
        return _varied(tables[table], name, title, _INTERVALS, cells, _INTERVALS[1])

    return Ablation(
        name="table-13",
        title="Ablation of the switching interval, 0.5 to 5 epochs",
        family="ablations",
        columns={method: f"T = {method.rpartition('=')[2]}" for method in _INTERVALS},
        option="switch_every",
        symbol="T",
        shown="heat map",
        small_note=_notes(tables, 4, 8, 10, 12),
        rows=(
            row("table-3", "wrn28-10", "CIFAR-100 Cls", "82.23 82.35 82.34 82.08"),
            row(
                *("table-4", "moco-v3-cifar100", "CIFAR-100 CL"),
                "50.73 52.27 52.25 51.94",
            ),
            row("table-4", "simmim-stl10", "STL-10 MIM", "92.01 92.06 91.93 91.68"),
            row("table-2", "deit-s-adamw", "IN-1K Cls", "79.5 80.6 80.1 78.9"),
            row("table-8", "cifar10", "CIFAR-10 Gen", "6.07 5.30 5.33 5.28"),
            row("table-10", "agedb-resnet50", "AgeDB Reg", "7.34 7.22 7.24 7.26"),
            row("table-12", "bert-yelp", "Yelp Cls", "68.17 68.46 68.28 68.23"),
        ),
    )


def make_figure_decay(tables: Mapping[str, PaperTable]) -> Ablation:
    """Build the ablation of the decays from rows of other tables."""
    methods, small = (
        ("plain", *(f"{name}:decay={d}" for name in DECAYS for d in decays[name]))
        for decays in (DECAYS, dict.fromkeys(DECAYS, _SMALL_DECAYS))
    )
    # The paper plots curves without numbers.
    nothing = " ".join("-" for _ in methods)

    def row(table: str, name: str, title: str, metric: int = 0) -> PaperRow:
        source = tables[table]
        own = _varied(source, name, title, methods, nothing, "plain", metric)
        return replace(own, small_methods=small)

    return Ablation(
        name="figure-decay",
        title="Ablation of the decays of EMA and Switch EMA (Figure 5)",
        family="ablations",
        columns={"plain": "Basic", **{method: method for method in methods[1:]}},
        option="decay",
        symbol="decay",
        shown="curves",
        small_note=(
            "Short trainings have few steps, so decays are smaller than the paper's, "
            "which are 0.9 to 0.9999 for EMA and 0.99 to 0.99999 for Switch EMA; they "
            "warm up with the number of steps, and 0.98 is reached after 440. "
            + _notes(tables, 4, 6, 8, 9, 10, 12)
        ),
        rows=(
            row("table-3", "wrn28-10", "CIFAR-100 Cls"),
            row("table-2", "deit-s-adamw", "IN-1K Cls"),
            row("table-4", "simclr-cifar100", "CIFAR-100 CL"),
            row("table-4", "simmim-stl10", "STL-10 MIM"),
            row("table-8", "cifar10", "CIFAR-10 Gen"),
            row("table-7", "retinanet-r50-2x", "COCO Det"),
            row("table-6", "mask-rcnn-2x", "COCO Seg", metric=1),
            row("table-10", "imdb-wiki-resnet50", "IMDB Reg"),
            row("table-9", "simvp", "MMNIST VP"),
            row("table-12", "bert-yelp", "Yelp Cls"),
        ),
    )


def _notes(tables: Mapping[str, PaperTable], *numbers: int) -> str:
    """Join the tables' notes about the small scale."""
    notes = {number: tables[f"table-{number}"].small_note for number in numbers}
    parts = (f"About Table {number}: {note}" for number, note in notes.items() if note)
    return " ".join([_SAME_TASKS, *parts])


def _in_one_training(row: PaperRow) -> PaperRow:
    """Give a row seeds of its own, and train it in its first variant only."""
    small = replace(row.small, first_seed=row.small.first_seed + _OWN_SEEDS)
    if not small.variants:
        return replace(row, small=small)
    options = {**small.options, **next(iter(small.variants.values()))}
    return replace(row, small=replace(small, options=options, variants={}))


def _varied(
    table: PaperTable,
    name: str,
    title: str,
    methods: tuple[str, ...],
    cells: str,
    baseline: str,
    metric: int = 0,
) -> PaperRow:
    """Copy a row of another table, with the settings as methods."""
    source = _in_one_training(next(row for row in table.rows if row.name == name))
    printed = PaperMetric(
        metric=source.metrics[metric].metric,
        values=values_of(methods, cells),
        ours=source.metrics[metric].ours,
    )
    return replace(
        source,
        title=f"{title}: {source.title}",
        metrics=(printed,),
        baseline=baseline,
    )
