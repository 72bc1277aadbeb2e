"""Training time, one bar per training."""

from switch_ema.analysis.method_style import display_name
from switch_ema.bench.report.figures import Figure, rows_layout
from switch_ema.bench.report.numbers import seconds
from switch_ema.bench.stats.summary import TaskSummary

_ROW_HEIGHT = 48


def costs(task: TaskSummary, key: str) -> Figure:
    """Plot the training time of each group of methods that share a training."""
    labels = [" + ".join(map(display_name, cost.methods)) for cost in task.costs]
    values = [cost.train_seconds for cost in task.costs]
    trace = {
        "type": "bar",
        "orientation": "h",
        "x": values,
        "y": [-row - 0.1 for row in range(len(values))],
        "width": 0.34,
        "text": [f" {seconds(value)} s" for value in values],
        "textposition": "outside",
        "cliponaxis": False,
        "hoverinfo": "skip",
        "meta": {"role": "bar"},
    }
    layout = rows_layout(labels, "training time per seed (seconds)")
    layout["xaxis"] |= {"range": [0, 1.15 * max([*values, 1e-9])], "zeroline": False}
    each = [
        f"{label} {seconds(value)} seconds"
        for label, value in zip(labels, values, strict=True)
    ]
    return Figure(
        id=key,
        caption="Training time per seed, mean over seeds, excluding evaluation; one "
        "bar per training, labelled with the methods that share it. Times depend "
        "on the machine and its load.",
        alternative=f"Bar chart of training time per seed: {', '.join(each)}.",
        height=_ROW_HEIGHT * len(values) + 76,
        traces=[trace],
        layout=layout,
    )
