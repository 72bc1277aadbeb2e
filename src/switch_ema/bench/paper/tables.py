"""What a table of the paper is: rows of what was trained, a value for each method."""

from dataclasses import dataclass

from switch_ema.bench.recipe import Metric

ACCURACY = Metric(name="top-1 accuracy", higher_is_better=True, unit="%")

COLUMNS = {
    "plain": "Basic",
    "ema": "+EMA",
    "swa": "+SWA",
    "lookahead": "+Lookahead",
    "switch-ema": "+SEMA",
}
"""The paper's name of each method, by ours."""


@dataclass(frozen=True, kw_only=True)
class PaperValue:
    """One cell of a table."""

    method: str
    """Ours, such as switch-ema."""
    value: float | None
    """As printed; None where the paper has none."""


@dataclass(frozen=True, kw_only=True)
class PaperRow:
    """One training setting, and what each method reached in it."""

    name: str
    """What it is called on the command line."""
    title: str
    """In the paper's own words."""
    network: str
    """Ours, such as resnet50."""
    dataset: str
    epochs: int
    optimizer: str = ""
    """Of supervised training; pre-training has the optimizer of its method."""
    procedure: str = ""
    """Of supervised training: a name in ``switch_ema.bench.procedures``."""
    pretraining: str = ""
    """The self-supervised method; empty for supervised training."""
    values: tuple[PaperValue, ...]
    baseline: str = "plain"
    """What the printed gain is measured from: the cell that the paper sets in grey."""
    printed_gain: float
    """Of Switch EMA, as printed."""

    def value(self, method: str) -> float | None:
        """Return what a method reached; None where the paper does not say."""
        for cell in self.values:
            if cell.method == method:
                return cell.value
        return None

    def gain(self, method: str, over: str | None = None) -> float | None:
        """Subtract the baseline's value, or another method's, from a method's.

        Rounded to the figures that the paper prints, so that 77.1 - 76.8 is 0.3.
        """
        own, other = self.value(method), self.value(over or self.baseline)
        return None if own is None or other is None else round(own - other, 2)

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods of the row, the baseline first."""
        names = [cell.method for cell in self.values]
        return (self.baseline, *(name for name in names if name != self.baseline))


@dataclass(frozen=True, kw_only=True)
class PaperTable:
    """A table of the paper, as data."""

    name: str
    """What it is called on the command line, such as table-2."""
    title: str
    decimals: int
    """With how many its values are printed."""
    rows: tuple[PaperRow, ...]
    metric: Metric = ACCURACY

    def __post_init__(self) -> None:
        names = [row.name for row in self.rows]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"{self.name} has two rows called {', '.join(twice)}.")


def values_of(methods: tuple[str, ...], text: str) -> tuple[PaperValue, ...]:
    """Read the cells of a row; a dash is a cell without a value.

    >>> [cell.value for cell in values_of(("plain", "ema"), "76.8 -")]
    [76.8, None]
    """
    cells = [None if cell == "-" else float(cell) for cell in text.split()]
    return tuple(
        PaperValue(method=method, value=value)
        for method, value in zip(methods, cells, strict=True)
    )
