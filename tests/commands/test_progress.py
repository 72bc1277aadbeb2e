"""Progress bars of a running comparison."""

import io
import re

import pytest
from rich.console import Console
from rich.progress import Progress

from switch_ema.bench.compare import run_comparison
from switch_ema.bench.execute.options import RunOptions
from switch_ema.bench.plan.cells import make_plan
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.commands.progress import TalkingBar


@pytest.fixture(autouse=True)
def every_update(monkeypatch):
    """Draw at every update, not ten times a second."""
    update = Progress.update

    def drawn(self, *arguments, **options):
        update(self, *arguments, **options)
        self.refresh()

    monkeypatch.setattr(Progress, "update", drawn)


def screen(**options):
    return Console(file=io.StringIO(), width=80, color_system=None, **options)


def lines_of(console):
    """Return the lines that were drawn, in order, without control sequences."""
    text = re.sub(r"\x1b\[[0-9?]*[A-Za-z]", "\n", console.file.getvalue())
    return [line.strip() for line in re.split(r"[\r\n]+", text) if line.strip()]


def config_of(**options):
    return CompareConfig(tasks=("moons",), methods=("plain", "ema"), **options)


def test_task_method_seeds_and_last_value_stand_below_the_bar(tmp_path):
    config, console = config_of(epochs=2, seeds=1), screen(force_terminal=True)
    options = RunOptions(out=tmp_path, name="run", device="cpu", executor="inline")
    run = run_comparison(config, options, watcher=TalkingBar(console))
    (task,) = run.summary.tasks
    curves = task.curves["accuracy"]["plain"]
    expected = [
        f"now moons: plain, ..., seed {seed}, accuracy {value:.4g}"
        for seed, curve in curves.items()
        for value in curve
    ]
    shown = [line for line in lines_of(console) if line.startswith("now ")]
    assert set(shown) == set(expected)


def test_what_has_ended_leaves_the_bar_alone():
    cell = make_plan(config_of(seeds=1))[0]
    console = screen()
    with TalkingBar(console).training([cell], 0) as on_epoch:
        on_epoch(cell, cell.recipe.epochs, None)
    [line] = lines_of(console)
    assert line.startswith("epochs ")


def test_the_name_of_a_metric_is_no_markup():
    cell = make_plan(config_of(seeds=4, stack="auto"))[0]
    console = screen(force_terminal=True)
    with TalkingBar(console).training([cell], 0) as on_epoch:
        on_epoch(cell, 1, ("[bold]loss[/bold]", 1e-9))
    expected = "now moons: plain, ..., seeds 0 to 3, [bold]loss[/bold] 1e-09"
    assert expected in lines_of(console)
