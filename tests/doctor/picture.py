"""Draws a healthy and a stalled average: ``python -m tests.doctor.picture``.

Both are torch's AveragedModel with the same decay on the same training, one in float32
and one in bfloat16. Written to docs/figures/doctor.svg.
"""

import copy
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from matplotlib.figure import Figure

from switch_ema.analysis.matplotlib_style import COLOURS, PAGE, paper_style, save_figure
from tests.doctor.averages import AveragedModel, mlp_with_sgd

FIGURE = Path(__file__).parents[2] / "docs" / "figures" / "doctor.svg"
DECAY = 0.999
EVERY = 5
"""Steps between two points."""


@dataclass(frozen=True)
class Paths:
    """One weight during training."""

    live: list[float]
    float32: list[float]
    bfloat16: list[float]


def measure(steps: int = 3000) -> Paths:
    """Train with both averages; return the weight that moves furthest."""
    torch.manual_seed(0)
    model, optimizer, loss = mlp_with_sgd()
    rounded = lambda: copy.deepcopy(model).to(torch.bfloat16)  # noqa: E731
    averages = AveragedModel(model, DECAY), AveragedModel(rounded(), DECAY)
    paths: list[list[torch.Tensor]] = [[], [], []]
    for step in range(1, steps + 1):
        loss(model).backward()
        optimizer.step()
        optimizer.zero_grad()
        averages[0].update(model)
        averages[1].update(rounded())
        if step % EVERY:
            continue
        shown = (list(model.parameters()), *(each.tensors() for each in averages))
        for path, tensors in zip(paths, shown, strict=True):
            path.append(tensors[-2].detach().float().flatten().clone())
    live, exact, coarse = (torch.stack(path) for path in paths)
    index = int((exact[-1] - exact[0]).abs().argmax())
    return Paths(*(each[:, index].tolist() for each in (live, exact, coarse)))


def draw(paths: Paths) -> Figure:
    """Draw the live weight with each of the averages."""
    with paper_style():
        figure = Figure(figsize=(PAGE, 2.3))
        panels = figure.subplots(1, 2, sharey=True)
        titles = {
            "healthy: float32": paths.float32,
            "stalled: bfloat16": paths.bfloat16,
        }
        for axes, (title, average) in zip(panels, titles.items(), strict=True):
            steps = range(EVERY, EVERY * len(average) + 1, EVERY)
            axes.plot(
                steps,
                paths.live,
                color=COLOURS[0],
                alpha=0.45,
                linewidth=0.7,
                label="live",
            )
            axes.plot(steps, average, color=COLOURS[1], label=f"average, decay {DECAY}")
            axes.set_title(title)
            axes.set_xlabel("optimizer step")
        panels[0].set_ylabel("one weight")
        panels[1].legend(loc="upper right", bbox_to_anchor=(1.0, 0.88))
    return figure


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        _, drawn, _ = save_figure(draw(measure()), Path(folder), FIGURE.stem)
        FIGURE.write_bytes(drawn.read_bytes())
    print(f"Written: {FIGURE}")


if __name__ == "__main__":
    main()
