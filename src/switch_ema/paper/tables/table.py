"""Data model of the paper's tables: rows with training settings and printed values.

A row names a task with its options at both scales, and holds one or more metrics as
printed. ``row_config`` builds the comparison that trains a row; the report section
needs nothing else.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from switch_ema.bench.recipe import Metric
from switch_ema.bench.spec import parse_spec, parse_task
from switch_ema.zoo.decays import Decays

COLUMNS = {
    "plain": "Basic",
    "ema": "+EMA",
    "swa": "+SWA",
    "lookahead": "+Lookahead",
    "switch-ema": "+SEMA",
}
"""The paper's names of methods, by ours."""

FRESH = 5000
"""First seed of small rows: no setting was chosen with these seeds."""

EPOCHS = "the epochs of the training"
"""Option value that is replaced by the number of epochs."""


@dataclass(frozen=True, kw_only=True)
class TeacherDecays:
    """Constant decays of an average that computes the targets of the training."""

    decays: Decays
    """Those of Table A1."""
    steps: int
    """Optimizer steps per epoch."""


@dataclass(frozen=True, kw_only=True)
class RowSetting:
    """Training settings of a row at one scale, small or paper."""

    task: str
    """Name of a task of the bench."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the task; the value ``EPOCHS`` stands for the number of epochs."""
    optimizer: str | None = None
    """With options, such as adam:lr=1e-3; None: the task's own optimizer is the
    row's."""
    epochs: int | None = None
    """None: the task's own."""
    evaluate_every: int | None = None
    """Epochs between two evaluations; None: the task's own."""
    decays: Decays | None = None
    """None: the task's own."""
    teacher: TeacherDecays | None = None
    """Set if the average teaches: then None of ``decays`` is the method's schedule."""
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Further options by title, each a separate task; empty: one task."""
    datasets: tuple[str, ...] = ()
    """Candidates; the first one found is used, and the last one always exists."""
    seeds: int = 3
    """Default number of seeds per method."""
    deploy: str | None = None
    """Rounding of the final weights to evaluate as well, such as int4."""
    stack: str = "off"
    """Whether seeds are stacked, as in ``CompareConfig.stack``."""
    first_seed: int = 0
    """Rows with the same task use different seeds: otherwise the same luck would count
    twice."""


@dataclass(frozen=True, kw_only=True)
class PaperValue:
    """One cell of a table."""

    method: str
    """Our name, such as switch-ema, with options if the paper varies one."""
    value: float | None
    """As printed; None if the paper has no value."""


@dataclass(frozen=True, kw_only=True)
class PaperMetric:
    """One metric of a row: the paper's value for each method, and the gain."""

    metric: Metric
    """As named in the paper, with the printed decimals."""
    values: tuple[PaperValue, ...]
    printed_gain: float | None = None
    """Gain of Switch EMA as printed; positive is better."""
    in_percent: bool = False
    """Whether gains are in per cent of the baseline's value."""
    ours: str | None = None
    """Name of the task's corresponding metric; None: the one at the same position."""
    misprint: str = ""
    """Why the printed gain does not match the printed values, if it does not."""

    def value(self, method: str) -> float | None:
        """Return a method's value; None if the paper has none."""
        for cell in self.values:
            if cell.method == method:
                return cell.value
        return None

    def gain(self, method: str, over: str) -> float | None:
        """Return by how much a method is better than another; negative if it is worse.

        The sign follows the metric: where lower is better, a lower value is a positive
        gain. Rounded to two decimals, the most that the paper prints, so that
        77.1 - 76.8 is 0.3.
        """
        own, other = self.value(method), self.value(over)
        if own is None or other is None:
            return None
        gain = own - other if self.metric.higher_is_better else other - own
        return round(100 * gain / abs(other) if self.in_percent else gain, 2)

    @property
    def is_printed(self) -> bool:
        """Whether the paper prints a value of any method."""
        return any(cell.value is not None for cell in self.values)

    @property
    def decimals(self) -> int:
        """Number of decimals of printed values."""
        return 2 if self.metric.decimals is None else self.metric.decimals

    @property
    def gain_decimals(self) -> int:
        """Number of decimals of printed gains."""
        return 2 if self.in_percent else self.decimals


@dataclass(frozen=True, kw_only=True)
class PaperRow:
    """One training setting with the paper's value of each method."""

    name: str
    """Name on the command line."""
    title: str
    """As named in the paper."""
    small: RowSetting
    paper: RowSetting
    metrics: tuple[PaperMetric, ...]
    """The first one decides, as in a comparison."""
    baseline: str = "plain"
    """Baseline of the printed gain: the cell that the paper shades grey."""
    short: RowSetting | None = None
    """A short training at the small scale, for ablations and figures that train many
    variants of the row; None: the usual one."""
    small_methods: tuple[str, ...] = ()
    """Methods at the small scale, if different from ``methods``."""
    home: str = ""
    """Name of the table whose folder stores the row; empty: the one that lists it. A
    figure that reuses a table's row trains nothing."""

    def __post_init__(self) -> None:
        methods = [cell.method for cell in self.metrics[0].values]
        for one in self.metrics:
            if [cell.method for cell in one.values] != methods:
                raise ValueError(f"metrics of {self.name} have different methods.")
        if self.baseline not in methods:
            raise ValueError(f"{self.name} has no value of {self.baseline!r}.")

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods of the row, the baseline first."""
        names = [cell.method for cell in self.metrics[0].values]
        return (self.baseline, *(name for name in names if name != self.baseline))

    def methods_at(self, scale: str) -> tuple[str, ...]:
        """Return the methods compared at a scale."""
        return (
            self.small_methods
            if scale == "small" and self.small_methods
            else self.methods
        )

    def setting(self, scale: str) -> RowSetting:
        """Return the training settings at a scale."""
        return self.paper if scale == "paper" else self.small

    def of_task(self, task: str) -> "PaperRow":
        """Return the row, titled after the variant that a task is, if it is one."""
        variant = self.variant_of(task)
        return replace(self, title=f"{self.title}, {variant}") if variant else self

    def variant_of(self, task: str) -> str | None:
        """Return the name of the variant that a task is, if it is one."""
        options = parse_task(task).options
        for title, own in self.small.variants.items():
            if own.items() <= options.items():
                return title
        return None

    def shortened(self) -> "PaperRow":
        """Return the row with its short training at the small scale."""
        return self if self.short is None else replace(self, small=self.short)

    def method_of(self, label: str) -> str:
        """Find the row's method behind a label that may have further options.

        A comparison adds options, such as the decay, to what the row names.
        """
        if label in self.methods:
            return label
        spec = parse_spec(label)
        for method in self.methods:
            own = parse_spec(method)
            if own.name == spec.name and own.options.items() <= spec.options.items():
                return method
        return label


@dataclass(frozen=True, kw_only=True)
class PaperTable:
    """A table of the paper, as data."""

    name: str
    """Name on the command line, such as table-2."""
    title: str
    rows: tuple[PaperRow, ...]
    family: str = ""
    """Kind of tasks, such as language: tables of one family share a page of results.
    Figures have none."""
    columns: Mapping[str, str] = field(default_factory=lambda: COLUMNS)
    """The paper's names of methods, by ours."""
    small_note: str = ""
    """Notes about the rows at the small scale, shown to readers."""
    seeds: int | None = None
    """Fixed number of seeds per row; None: as requested."""
    first: tuple[str, ...] = ()
    """Rows that others are compared with: a budget includes them first."""
    keeps: Literal["none", "first", "all"] = "none"
    """Methods whose weights are kept, for measurements after training."""
    keeps_trajectory: bool = False
    """Whether the weights of every epoch are kept, too."""

    def __post_init__(self) -> None:
        names = [row.name for row in self.rows]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"{self.name} has two rows called {', '.join(twice)}.")

    @property
    def metric_names(self) -> list[str]:
        """Names of all metrics, each once."""
        found = (one.metric.name for row in self.rows for one in row.metrics)
        return list(dict.fromkeys(found))


def values_of(methods: tuple[str, ...], text: str) -> tuple[PaperValue, ...]:
    """Parse the cells of a row; a dash is a missing value.

    >>> [cell.value for cell in values_of(("plain", "ema"), "76.8 -")]
    [76.8, None]
    """
    cells = [None if cell == "-" else float(cell) for cell in text.split()]
    return tuple(
        PaperValue(method=method, value=value)
        for method, value in zip(methods, cells, strict=True)
    )
