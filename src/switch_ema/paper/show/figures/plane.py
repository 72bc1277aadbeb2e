"""Figure 3: pairs of methods in the plane in which they moved, with trajectories."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from switch_ema.bench.analyses.landscape_settings import LandscapeSettings
from switch_ema.bench.errors import UsageError
from switch_ema.bench.recipe import Metric
from switch_ema.bench.report.sections import FIGURES, Picture
from switch_ema.paper.show.figures.figure import (
    METHODS,
    Drawing,
    DrawnRun,
    FigureKind,
    PaperFigure,
    nothing_printed,
    usual_methods,
)
from switch_ema.paper.tables.table import PaperRow, PaperTable, RowSetting

SETTINGS = LandscapeSettings(side=31)


def draw(runs: Sequence[DrawnRun], methods: tuple[str, ...], folder: Path) -> Drawing:
    """Draw one picture per task: pairs of methods side by side."""
    # A list of figures needs neither torch nor matplotlib.
    from switch_ema.analysis.landscape.figure import caption, draw_surfaces
    from switch_ema.analysis.matplotlib_style import save_figure
    from switch_ema.bench.analyses.landscape import TaskLandscape
    from switch_ema.bench.results.kept_weights import load_kept

    pictures: list[Picture] = []
    problems: list[str] = []
    for run in runs:
        for kept in load_kept(run.folder, methods, "cpu"):
            chosen = list(methods) or usual_methods(kept.trajectory)
            surfaces = []
            for pair in pairwise(chosen):
                paths = {m: kept.trajectory[m] for m in pair if m in kept.trajectory}
                own = replace(kept, trajectory=paths)
                surface = TaskLandscape(own, SETTINGS).plane()
                if surface is not None and len(surface.paths) == 2:
                    surfaces.append(surface)
            if not surfaces:
                problems.append(
                    f"{kept.name} has no two methods with stored trajectories that "
                    "span a plane."
                )
                continue
            name = f"{PLANE.name}-{len(pictures) + 1}" if pictures else PLANE.name
            save_figure(draw_surfaces(surfaces), folder / FIGURES, name)
            pictures.append(
                Picture(
                    name=name,
                    caption=f"{run.title or kept.name}, seed {kept.seed}. "
                    + " ".join(caption(surface) for surface in surfaces),
                    alternative="Contours of the loss with pairs of trajectories",
                )
            )
    if not pictures:
        raise UsageError(" ".join(["nothing to draw.", *problems]))
    return Drawing(paragraphs=problems, pictures=pictures)


def _make(tables: Mapping[str, PaperTable]) -> PaperFigure:
    setting = RowSetting(task="circles")
    accuracy = Metric(name="accuracy", higher_is_better=True, unit="%")
    return PaperFigure(
        name="figure-plane",
        title="Pairs of methods on circles, with trajectories (Figure 3)",
        small_note="The loss is on the training points; the paper shows the test "
        "points.",
        draw=draw,
        seeds=1,
        keeps="first",
        keeps_trajectory=True,
        rows=(
            PaperRow(
                name="circles",
                title="Circles",
                small=setting,
                paper=setting,
                metrics=(nothing_printed(accuracy, METHODS),),
            ),
        ),
    )


PLANE = FigureKind(
    name="plane",
    number="3",
    description="pairs of methods in the plane of their trajectories",
    draw=draw,
    make=_make,
)
