"""Not in the paper: gains over EMA against the final training loss, by task."""

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from switch_ema.bench.errors import UsageError
from switch_ema.bench.report.sections import FIGURES, Picture
from switch_ema.bench.text import counted
from switch_ema.paper.show.figures.figure import Drawing, DrawnRun, FigureKind

if TYPE_CHECKING:
    from switch_ema.analysis.mechanism.figure import MechanismPanel
    from switch_ema.bench.stats.summary import TaskSummary

_REFERENCE = "ema"


def draw(runs: Sequence[DrawnRun], methods: tuple[str, ...], folder: Path) -> Drawing:
    """Draw a panel per task of the runs, with all or the requested methods."""
    # A list of figures needs neither torch nor matplotlib.
    from switch_ema.analysis.matplotlib_style import save_figure
    from switch_ema.analysis.mechanism.figure import draw_mechanism
    from switch_ema.analysis.method_style import display_name
    from switch_ema.bench.compare import summarize_run
    from switch_ema.bench.report.figures import range_of
    from switch_ema.bench.report.rows import number_of_seeds
    from switch_ema.bench.stats.paired import CONFIDENCE

    panels, seeds = [], []
    for run in runs:
        tasks = summarize_run(run.folder).tasks
        for task in tasks:
            title = run.title_of(task.title, is_alone=len(tasks) == 1)
            panel = _panel(task, title, methods)
            if panel.methods:
                panels.append(panel)
                seeds.append(number_of_seeds(task))
    if not panels:
        raise UsageError(
            "nothing to draw: the runs have no training losses, or no ema to compare "
            "with."
        )
    reference = display_name(_REFERENCE)
    save_figure(draw_mechanism(panels, reference), folder / FIGURES, MECHANISM.name)
    return Drawing(
        pictures=[
            Picture(
                name=MECHANISM.name,
                caption=f"Paired gains over {reference} at the last epoch, mean and "
                f"{CONFIDENCE} interval (not corrected), against the mean training "
                f"loss of the weights that each method returns "
                f"(n = {range_of(sorted(seeds))}). If only how closely a method fits "
                "the training data matters, the averages lie on one curve and their "
                "rank correlation is near 1 or -1.",
                alternative="Gain against training loss, "
                f"{counted(len(panels), 'task')}",
            )
        ]
    )


def _panel(
    task: "TaskSummary", title: str, methods: tuple[str, ...]
) -> "MechanismPanel":
    from switch_ema.analysis.gains.figure import Gain
    from switch_ema.analysis.mechanism.figure import FittedMethod, MechanismPanel
    from switch_ema.bench.report.numbers import with_unit

    metric = task.metrics[0]
    curves, losses = task.curves[metric.name], task.training_losses
    reference = next((m for m in curves if m.partition(":")[0] == _REFERENCE), None)
    found = {}
    if reference is None:
        return MechanismPanel(title, with_unit(metric), {})
    for method in curves:
        own = [loss for loss in losses.get(method, {}).values() if math.isfinite(loss)]
        if not own or (methods and method not in methods):
            continue
        gain = Gain(0.0, 0.0, 0.0)
        if method != reference:
            difference = task.against(method, reference)
            if difference is None:
                continue
            gain = Gain(difference.mean, *difference.bounds)
        found[method] = FittedMethod(fmean(own), gain)
    return MechanismPanel(title, with_unit(metric), found)


MECHANISM = FigureKind(
    name="mechanism",
    description="gains over EMA against the final training loss, one panel per task",
    draw=draw,
)
