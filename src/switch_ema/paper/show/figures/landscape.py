"""Figure 2: loss and accuracy along a random direction, one panel per network."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

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
from switch_ema.paper.tables.table import PaperRow, PaperTable

if TYPE_CHECKING:
    from switch_ema.analysis.landscape.surface import LandscapeLine

SETTINGS = LandscapeSettings(points=21, batches=16, reach=0.5)
_METHODS = ("plain", "ema", "swa", "switch-ema")


def draw(runs: Sequence[DrawnRun], methods: tuple[str, ...], folder: Path) -> Drawing:
    """Measure around the kept weights of each run and draw all in one picture."""
    # A list of figures needs neither torch nor matplotlib.
    from switch_ema.analysis.landscape.figure import draw_lines
    from switch_ema.analysis.matplotlib_style import save_figure
    from switch_ema.bench.analyses.landscape import TEST_LOSS, TaskLandscape
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
                landscape = TaskLandscape(own, SETTINGS)
                lines[title] = landscape.random_line(tested=True)
    if not lines:
        raise UsageError(" ".join(["nothing to draw.", *problems]))
    tested = {t: line for t, line in lines.items() if TEST_LOSS in line.values}
    pictures = []
    # The paper draws validation losses; training losses are in a picture beside it.
    for name, kind, drawn, loss, omitted in (
        (LANDSCAPE.name, "cross-entropy on the test data", tested, TEST_LOSS, "loss"),
        (f"{LANDSCAPE.name}-training", "training loss", lines, "loss", TEST_LOSS),
    ):
        if drawn:
            figure = draw_lines(drawn, loss=loss, omit=(omitted,))
            save_figure(figure, folder / FIGURES, name)
            pictures.append(_picture(name, kind, drawn))
    return Drawing(paragraphs=problems, pictures=pictures)


def _picture(name: str, kind: str, lines: Mapping[str, "LandscapeLine"]) -> Picture:
    first = next(iter(lines.values()))
    return Picture(
        name=name,
        caption=f"Solid: {kind} (left axes). Dashed: primary metric on the test data "
        "(right axes). Starting from the weights of each method (step 0), at "
        f"{first.steps.size} points along one random filter-normalised direction, the "
        "same for all methods; one seed: a picture of a single training, not evidence "
        "about a method.",
        alternative=f"{kind} and metric along a random direction, "
        f"{counted(len(lines), 'task')}",
    )


def _make(tables: Mapping[str, PaperTable]) -> PaperFigure:
    named = (
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
        rows=(_wrn28_8(tables), *(_shown(tables, *names) for names in named)),
    )


def _shown(tables: Mapping[str, PaperTable], *names: str) -> PaperRow:
    table, row, title = names
    return shown_row(tables, table, row, title, methods=_METHODS)


def _wrn28_8(tables: Mapping[str, PaperTable]) -> PaperRow:
    """Return the figure's first panels, of a network that no table has."""
    row = _shown(tables, "table-3", "wrn28-10", "WRN-28-8 (SGD)")
    small, paper = (
        replace(setting, options={**setting.options, "network": "wrn28-8"})
        for setting in (row.small, row.paper)
    )
    return replace(row, name="wrn28-8", small=small, paper=paper)


LANDSCAPE = FigureKind(
    name="landscape",
    number="2",
    description="loss and metric along a random direction, one panel per task",
    draw=draw,
    make=_make,
)
