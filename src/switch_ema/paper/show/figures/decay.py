"""Figure 5: metrics against the decays of EMA and Switch EMA, one panel per task."""

from collections.abc import Sequence
from pathlib import Path

from switch_ema.bench.errors import UsageError
from switch_ema.paper.show.figures.figure import Drawing, DrawnRun, FigureKind
from switch_ema.paper.tables.ablations import Ablation, make_figure_decay


def draw(runs: Sequence[DrawnRun], methods: tuple[str, ...], folder: Path) -> Drawing:
    """Draw a panel per task of the runs, with curves over ``decay``."""
    # A list of figures needs neither torch nor matplotlib.
    from switch_ema.bench.compare import summarize_run
    from switch_ema.paper import TABLES
    from switch_ema.paper.show.ablation_section import draw_ablation

    tasks = []
    for run in runs:
        found = summarize_run(run.folder).tasks
        tasks += [
            (run.title_of(task.task, is_alone=len(found) == 1), task) for task in found
        ]
    table = TABLES["figure-decay"]
    assert isinstance(table, Ablation)
    picture = draw_ablation(table, tasks, methods, folder, DECAY.name)
    if picture is None:
        raise UsageError(
            "the runs have no method with a decay, such as ema:decay=0.99."
        )
    return Drawing(pictures=[picture])


DECAY = FigureKind(
    name="decay",
    number="5",
    description="the primary metric against the decay, one panel per task",
    draw=draw,
    make=make_figure_decay,
)
