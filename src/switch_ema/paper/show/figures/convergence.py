"""Figure 1: metrics against the epochs, several tasks in one picture."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from switch_ema.bench.errors import UsageError
from switch_ema.bench.report.sections import FIGURES, Picture
from switch_ema.bench.text import counted
from switch_ema.paper.show.figures.figure import (
    Drawing,
    DrawnRun,
    FigureKind,
    PaperFigure,
    shown_row,
    usual_methods,
)
from switch_ema.paper.tables.table import PaperTable

if TYPE_CHECKING:
    from switch_ema.analysis.convergence.figure import CurvePanel
    from switch_ema.bench.stats.summary import TaskSummary


def draw(runs: Sequence[DrawnRun], methods: tuple[str, ...], folder: Path) -> Drawing:
    """Draw one panel per task of the runs."""
    # A list of figures needs neither torch nor matplotlib.
    from switch_ema.analysis.convergence.figure import draw_convergence
    from switch_ema.analysis.matplotlib_style import save_figure
    from switch_ema.bench.compare import summarize_run
    from switch_ema.bench.report.figures import range_of
    from switch_ema.bench.report.rows import number_of_seeds

    panels, seeds = [], []
    for run in runs:
        tasks = summarize_run(run.folder).tasks
        for task in tasks:
            title = run.title_of(task.task, is_alone=len(tasks) == 1)
            panels.append(_panel(task, title, methods))
            seeds.append(number_of_seeds(task))
    if not any(panel.curves for panel in panels):
        raise UsageError("nothing to draw: no training of these runs has finished.")
    save_figure(draw_convergence(panels), folder / FIGURES, CONVERGENCE.name)
    n = range_of(sorted(seeds))
    return Drawing(
        pictures=[
            Picture(
                name=CONVERGENCE.name,
                caption=f"Lines: mean over seeds after every epoch (n = {n}). Bands: "
                "one standard error to each side. Vertical axes are cropped to where "
                "methods differ.",
                alternative=f"Metric against epochs, {counted(len(panels), 'task')}",
            )
        ]
    )


def _panel(task: "TaskSummary", title: str, methods: tuple[str, ...]) -> "CurvePanel":
    from switch_ema.analysis.convergence.figure import Curve, CurvePanel
    from switch_ema.bench.report.curves import band, visible_range
    from switch_ema.bench.report.numbers import with_unit
    from switch_ema.bench.report.rows import baseline_of

    metric = task.metrics[0]
    curves = task.curves[metric.name]
    bands = {label: band(curves[label]) for label in _chosen(curves, methods)}
    baseline = band(curves[baseline_of(task.results[metric.name])])
    direction = "higher" if metric.higher_is_better else "lower"
    return CurvePanel(
        title=title,
        metric=f"{with_unit(metric)}\n{direction} is better",
        curves={
            label: Curve(own.epochs, own.mean, own.error)
            for label, own in bands.items()
            if own
        },
        shown=visible_range([own for own in bands.values() if own], baseline),
    )


def _chosen(known: Iterable[str], methods: tuple[str, ...]) -> list[str]:
    """Find the requested methods, or those of the paper; if none match, all."""
    known = list(known)
    found = [label for label in known if label in methods]
    if methods and not found:
        raise UsageError(
            f"a run has no method {', '.join(methods)}; it has {', '.join(known)}."
        )
    return found or usual_methods(known) or known


def _make(tables: Mapping[str, PaperTable]) -> PaperFigure:
    return PaperFigure(
        name="figure-convergence",
        title="Metrics against epochs on four tasks (Figure 1)",
        draw=draw,
        rows=(
            shown_row(tables, "table-2", "deit-s-adamw", "DeiT-S (IN-1K)"),
            shown_row(
                *(tables, "table-6", "cascade-mask-rcnn-3x", "C. Mask R-CNN (COCO)")
            ),
            shown_row(tables, "table-4", "moco-v3-cifar100", "MoCo.V3 (CIFAR-100)"),
            shown_row(tables, "table-10", "agedb-convnext-t", "ConvNeXt-T (AgeDB)"),
        ),
    )


CONVERGENCE = FigureKind(
    name="convergence",
    number="1",
    description="the primary metric against epochs, one panel per task",
    draw=draw,
    make=_make,
)
