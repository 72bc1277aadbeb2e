"""Not in the paper: differences from the baseline with intervals, by task."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from switch_ema.bench.errors import UsageError
from switch_ema.bench.report.sections import FIGURES, Picture
from switch_ema.bench.text import counted
from switch_ema.paper.show.figures.figure import Drawing, DrawnRun, FigureKind

if TYPE_CHECKING:
    from switch_ema.analysis.gains.figure import GainPanel
    from switch_ema.bench.stats.summary import TaskSummary


def draw(runs: Sequence[DrawnRun], methods: tuple[str, ...], folder: Path) -> Drawing:
    """Draw a panel per task of the runs, with all or the requested methods."""
    # A list of figures needs neither torch nor matplotlib.
    from switch_ema.analysis.gains.figure import draw_gains
    from switch_ema.analysis.matplotlib_style import save_figure
    from switch_ema.analysis.method_style import display_name
    from switch_ema.bench.compare import summarize_run
    from switch_ema.bench.report.figures import range_of
    from switch_ema.bench.report.rows import baseline_of, number_of_seeds
    from switch_ema.bench.stats.paired import CONFIDENCE

    tasks = [task for run in runs for task in summarize_run(run.folder).tasks]
    panels = [_panel(task, methods) for task in tasks]
    if not any(panel.gains for panel in panels):
        raise UsageError(
            "nothing to draw: these methods have no paired seeds in the runs."
        )
    save_figure(draw_gains(panels), folder / FIGURES, GAINS.name)
    baselines = {baseline_of(task.results[task.metrics[0].name]) for task in tasks}
    n = range_of(sorted(map(number_of_seeds, tasks)))
    return Drawing(
        pictures=[
            Picture(
                name=GAINS.name,
                caption="Paired differences from "
                f"{' or '.join(sorted(map(display_name, baselines)))} at the last "
                f"epoch, mean and {CONFIDENCE} interval, corrected over the methods "
                f"of a run (n = {n}). Higher is better; points are filled if the "
                "interval excludes zero, and near ties have no interval.",
                alternative=f"Differences by method, {counted(len(panels), 'task')}",
            )
        ]
    )


def _panel(task: "TaskSummary", methods: tuple[str, ...]) -> "GainPanel":
    from switch_ema.analysis.gains.figure import Gain, GainPanel
    from switch_ema.bench.report.numbers import with_unit

    metric = task.metrics[0]
    gains = {}
    for result in task.results[metric.name]:
        found = result.difference
        is_wanted = not methods or result.method in methods
        if is_wanted and found is not None and math.isfinite(found.mean):
            gains[result.method] = Gain(found.mean, found.low, found.high)
    return GainPanel(task.task, with_unit(metric), gains)


GAINS = FigureKind(
    name="gains",
    description="differences from the baseline with intervals, one panel per task",
    draw=draw,
)
