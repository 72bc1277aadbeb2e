"""Figure 2: loss and accuracy along a random direction, one panel per network."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from switch_ema.bench.analyses.landscape_settings import LandscapeSettings
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

SETTINGS = LandscapeSettings(points=21, batches=16, reach=0.5)
_METHODS = ("plain", "ema", "swa", "switch-ema")


def draw(runs: Sequence[DrawnRun], methods: tuple[str, ...], folder: Path) -> Drawing:
    """Measure around the kept weights of each run and draw all in one picture."""
    # A list of figures needs neither torch nor matplotlib.
    from switch_ema.analysis.landscape.figure import draw_lines
    from switch_ema.analysis.matplotlib_style import save_figure
    from switch_ema.bench.analyses.landscape import TaskLandscape
    from switch_ema.bench.results.kept_weights import load_kept

    lines, problems = {}, []
    for run in runs:
        kept = load_kept(run.folder, methods, "cpu")
        for task in kept:
            title = run.title if run.title and len(kept) == 1 else task.name
            if task.task.loss_in_training_only:
                problems.append(f"{title}: no loss in evaluation mode to draw.")
            else:
                chosen = methods or usual_methods(task.weights, _METHODS)
                weights = {label: task.weights[label] for label in chosen}
                own = replace(task, weights=weights or task.weights)
                lines[title] = TaskLandscape(own, SETTINGS).random_line()
    if not lines:
        raise UsageError(" ".join(["nothing to draw.", *problems]))
    save_figure(draw_lines(lines), folder / FIGURES, LANDSCAPE.name)
    first = next(iter(lines.values()))
    return Drawing(
        paragraphs=problems,
        pictures=[
            Picture(
                name=LANDSCAPE.name,
                caption="Solid: training loss (left axes). Dashed: primary metric on "
                "the test data (right axes). Starting from the weights of each method "
                f"(step 0), at {first.steps.size} points along one random "
                "filter-normalised direction, the same for all methods; one seed: a "
                "picture of a single training, not evidence about a method.",
                alternative="Loss and metric along a random direction, "
                f"{counted(len(lines), 'task')}",
            )
        ],
    )


def _make(tables: Mapping[str, PaperTable]) -> PaperFigure:
    named = (
        ("table-3", "wrn28-10", "WRN-28 (SGD)"),
        ("table-3", "swin-s", "Swin-S (AdamW)"),
        ("table-3", "resnext50-32x4d", "ResNeXt-50 (SGD)"),
        ("table-3", "convnext-s", "ConvNeXt-S (AdamW)"),
        ("table-2", "deit-s-adamw", "DeiT-S (AdamW)"),
        ("table-2", "convnext-t-adamw", "ConvNeXt-T (AdamW)"),
    )
    return PaperFigure(
        name="figure-landscape",
        title="Loss and accuracy along a random direction (Figure 2)",
        draw=draw,
        seeds=1,
        keeps="first",
        rows=tuple(shown_row(tables, *names, methods=_METHODS) for names in named),
    )


LANDSCAPE = FigureKind(
    name="landscape",
    number="2",
    description="loss and metric along a random direction, one panel per task",
    draw=draw,
    make=_make,
)
