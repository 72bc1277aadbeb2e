"""Figures 4 and A1: decision boundaries on circles and moons, with numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from switch_ema.bench.recipe import Metric
from switch_ema.paper.show.figures.figure import (
    METHODS,
    Drawing,
    DrawnRun,
    FigureKind,
    PaperFigure,
    nothing_printed,
)
from switch_ema.paper.tables.table import PaperRow, PaperTable, RowSetting


def draw(runs: Sequence[DrawnRun], methods: tuple[str, ...], folder: Path) -> Drawing:
    """Measure and draw the boundaries of each run; its task must be 2D."""
    # A list of figures needs neither torch nor matplotlib.
    from switch_ema.bench.analyses.boundary import compare_boundaries
    from switch_ema.bench.report.boundaries import boundary_section
    from switch_ema.bench.results.folder import open_run

    drawing = Drawing()
    for run in runs:
        config, results = open_run(run.folder)
        results.close()
        comparison = compare_boundaries(
            config.tasks[0],
            config.methods,
            config.seeds,
            first_seed=config.first_seed,
            epochs=config.epochs,
            optimizer=config.optimizer,
            evaluate_every=config.evaluate_every,
            folder=run.folder,
        )
        if methods:
            shown = [m for m in comparison.methods if m.method in methods]
            comparison = replace(comparison, methods=tuple(shown) or comparison.methods)
        section = boundary_section(comparison, folder)
        drawing.pictures.extend(section.pictures)
        drawing.sheets.extend(section.sheets)
        drawing.paragraphs[:] = [
            *dict.fromkeys([*drawing.paragraphs, *section.paragraphs])
        ]
    return drawing


def _make(tables: Mapping[str, PaperTable]) -> PaperFigure:
    accuracy = Metric(name="accuracy", higher_is_better=True, unit="%")
    return PaperFigure(
        name="figure-boundary",
        title="Decision boundaries on circles and moons (Figures 4 and A1)",
        draw=draw,
        seeds=24,
        keeps="all",
        rows=tuple(
            PaperRow(
                name=name,
                title=name.capitalize(),
                small=RowSetting(task=name),
                paper=RowSetting(task=name),
                metrics=(nothing_printed(accuracy, METHODS),),
            )
            for name in ("circles", "moons")
        ),
    )


BOUNDARY = FigureKind(
    name="boundary",
    number="4, A1",
    description="decision boundaries in the plane: accuracy, width, calibration",
    draw=draw,
    make=_make,
)
