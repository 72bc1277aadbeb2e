"""The Markdown table of all rows at the paper's scale, from stored rehearsals.

Measured and assumed numbers are apart: operations and memory are counted in rehearsals,
the speed of a GPU comes from published throughputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from switch_ema._files import write_atomically
from switch_ema.bench.errors import UsageError
from switch_ema.bench.plan.cells import make_plan
from switch_ema.bench.spec import parse_spec
from switch_ema.bench.text import read_utf8
from switch_ema.paper.reproduce.full_size import full_size
from switch_ema.paper.reproduce.plan import RowPlan
from switch_ema.paper.reproduce.rehearsals import Rehearsal, load_rehearsal
from switch_ema.zoo.tasks.registry import needed_data

BEGIN, END = "<!-- rehearsals: begin -->", "<!-- rehearsals: end -->"
"""Marks of the part of a page that is replaced."""


@dataclass(frozen=True)
class _Throughput:
    """A published training throughput of a network, and what it computes."""

    network: str
    images_per_second: float
    gflops: float
    """10^9 floating-point operations of a training step, per image: three times those
    of the forward pass."""

    @property
    def tflops(self) -> float:
        """Sustained 10^12 operations per second."""
        return self.images_per_second * self.gflops / 1e3


_GPU = "an RTX 3090"
_SOURCE = (
    "timm's published training benchmark (mixed precision, channels last, PyTorch "
    "1.12, 224 pixels)"
)
_RESNET = _Throughput("ResNet-50", 1218.0, 24.5)
_DEIT = _Throughput("DeiT-S", 1050.7, 27.6)
_CONVNEXT = _Throughput("ConvNeXt-T", 819.2, 26.8)
_SWIN = _Throughput("Swin-T", 648.7, 27.0)
_DENSENET = _Throughput("DenseNet-121", 913.7, 17.2)
_REFERENCES = {
    "deit": _DEIT,
    "mlp-mixer": _DEIT,
    "bert": _DEIT,
    "convnext": _CONVNEXT,
    "swin": _SWIN,
    "densenet": _DENSENET,
    # Without published throughputs; many small operations, like DenseNet's.
    "moganet": _DENSENET,
    "lstm": _DENSENET,
    "predrnn": _DENSENET,
}
"""Throughput that stands for a network, by part of its name or of the task's; all
others compute mostly convolutions, as ResNet-50 does."""


def _reference_of(task: str) -> _Throughput:
    """Return the published throughput that stands for a row's network."""
    spec = parse_spec(task)
    name = f"{spec.name} {spec.options.get('network', spec.options.get('backbone'))}"
    return next((one for part, one in _REFERENCES.items() if part in name), _RESNET)


def _assumed_hours(rehearsal: Rehearsal, epochs: float) -> float | None:
    """Return the GPU-hours of training some epochs, at the assumed speed."""
    if rehearsal.measured is None or rehearsal.side is not None:
        return None
    operations = full_size(rehearsal.task).trained * rehearsal.measured.flops * epochs
    return operations / _reference_of(rehearsal.task).tflops / 1e12 / 3600


def write_rehearsals(
    path: Path, plans: Sequence[RowPlan], out: Path, command: str
) -> None:
    """Write the table of stored rehearsals between the two marks of a page.

    A row that is not among the plans, or whose rehearsal is not stored here, keeps the
    line that the page has: rehearsals may come from several machines.
    """
    page = read_utf8(path) if path.is_file() else f"{BEGIN}\n{END}\n"
    before, begin, rest = page.partition(BEGIN)
    old, end, after = rest.partition(END)
    if not (begin and end):
        raise UsageError(f"{path} must contain the lines {BEGIN} and {END}.")
    lines = {_row_of(line): line for line in old.splitlines() if line.startswith("| `")}
    for plan in plans:
        found = load_rehearsal(out, *_names(plan))
        if found is not None or _title(plan) not in lines:
            lines[_title(plan)] = _line(plan, found)
    text = _table(list(lines.values()), command)
    write_atomically(path, f"{before}{BEGIN}\n{text}\n{END}{after}")


def _table(rows: Sequence[str], command: str) -> str:
    """Return the Markdown table of rows, with the assumptions behind it."""
    lines = [
        "| row | data | network | batch | memory, GB | GFLOP | rehearsed | GPU-hours |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        *rows,
    ]
    references = dict.fromkeys([_RESNET, *_REFERENCES.values()])
    speeds = ", ".join(
        f"{one.network} {one.images_per_second:,.0f} images/s x {one.gflops:g} GFLOP = "
        f"{one.tflops:.0f} TFLOP/s"
        for one in references
    )
    return "\n".join([f"Written by `{command}`.", "", *lines, "", _legend(speeds)])


def _legend(speeds: str) -> str:
    return (
        "**Counted in rehearsals:** parameters; memory in float32 of the state "
        "(weights, gradients, optimizer, averages) + the activations of a whole batch, "
        "which accumulation and several GPUs divide; GFLOP, the operations of a "
        "training step per example. **Assumed:** GPU-hours of one training of the "
        "longest method / of the whole row (all methods and seeds), without "
        f"evaluations, on {_GPU}: examples x epochs x GFLOP / speed. The speed is that "
        f"of a published network of the same kind: {speeds}, from {_SOURCE}. "
        "MogaNet, LSTMs and PredRNN have no published throughput and use DenseNet's "
        "speed. A question mark: rehearsed with smaller images only. None of these "
        "rows was ever run on a GPU by us."
    )


def _title(plan: RowPlan) -> str:
    """Return the first cell of a row, such as `3 resnet18`."""
    return f"`{plan.table.name.removeprefix('table-')} {plan.row.name}`"


def _row_of(line: str) -> str:
    """Return the first cell of a line of the table.

    >>> _row_of("| `3 resnet18` | cifar100 |")
    '`3 resnet18`'
    """
    return line.split("|")[1].strip()


def _names(plan: RowPlan) -> tuple[str, str]:
    return plan.table.name, plan.row.name


def _line(plan: RowPlan, found: Rehearsal | None) -> str:
    spec = parse_spec(plan.config.tasks[0])
    data = ", ".join(needed_data(spec.name, spec.options))
    size = full_size(plan.config.tasks[0])
    start = [_title(plan), data]
    if found is None or found.measured is None:
        why = "no" if found is None else "failed"
        return _joined([*start, "", f"{size.batch:,} {size.unit}", "", "", why, ""])
    one, cells = found.measured, make_plan(plan.config)
    hours = [
        _assumed_hours(found, epochs)
        for epochs in (
            max(cell.recipe.epochs for cell in cells),
            sum(cell.recipe.epochs for cell in cells),
        )
    ]
    sized = found.side is None
    state, kept = one.state_mb / 1e3, size.batch * one.activations_mb / 1e3
    how = f"{one.batch:,} {size.unit}" if sized else f"at {found.side} pixels"
    return _joined(
        [
            *start,
            one.network.replace(" parameters", "").lstrip("_"),
            f"{size.batch:,} {size.unit}",
            f"{state:.1f} + {_short(kept)}" if sized else f"{state:.1f} + ?",
            _short(one.flops / 1e9) if sized else "",
            f"{found.when}, {how}",
            " / ".join("?" if one is None else _short(one) for one in hours),
        ]
    )


def _short(value: float) -> str:
    """Format a number with two digits or more.

    >>> [_short(value) for value in (0.0815, 3.33, 24.3, 1070.2)]
    ['0.082', '3.3', '24', '1,070']
    """
    if value >= 10:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def _joined(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
