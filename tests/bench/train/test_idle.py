"""Methods that never acted: found, explained, and not judged."""

import sys

import pytest
import torch
from torch import nn

from switch_ema.averaging.registry import METHODS
from switch_ema.bench.compare import run_comparison, summarize_run
from switch_ema.bench.execute.options import RunOptions
from switch_ema.bench.methods import parse_method
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.report.verdict_text import best_of, best_sentence, verdicts
from switch_ema.bench.train.idle import why_idle


def reason(label, tmp_path, *, epochs=3, steps=10):
    """Train with a method and ask whether it acted."""
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = parse_method(label, {})
    averager = method.make(model, optimizer, epochs=epochs, folder=tmp_path)
    for _ in range(epochs):
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(4, 2)).square().mean().backward()
            optimizer.step()
        averager.end_epoch()
    return why_idle(method, averager, epochs)


@pytest.mark.parametrize(
    ("label", "epochs", "why"),
    [
        ("lookahead", 3, "30 steps, k = 100; try lookahead:k=5"),
        ("lookahead:k=40", 2, "20 steps, k = 40; try lookahead:k=3"),
        ("swa:start=5", 3, "3 epochs, start = 5; try swa:start=0"),
        ("swa", 3, "3 epochs, start = 2; try swa:start=0"),
        ("lawa:every=4", 3, "3 epochs, every = 4; try lawa:every=1"),
        ("lawa", 1, "1 epoch, every = 1; try lawa:every=1it"),
        ("switch-ema:switch_every=5", 3, "3 epochs, switch_every = 5; try"),
        ("switch-ema:switch_start=3", 3, "switch_start = 3; try switch-ema:"),
        ("switch-ema:switch_every=50it", 3, "30 steps, switch_every = 50; try"),
        ("pswa", 3, "3 epochs, period = 5; try pswa:period=1"),
    ],
)
def test_the_reason_names_the_option_that_would_change_it(tmp_path, label, epochs, why):
    found = reason(label, tmp_path, epochs=epochs)
    assert why in found
    better = found.partition("try ")[2]
    if label != "swa:start=5":
        assert reason(better, tmp_path, epochs=epochs) == ""


@pytest.mark.parametrize("name", METHODS)
def test_every_method_acts_in_a_training_that_is_long_enough(tmp_path, name):
    assert reason(name, tmp_path, epochs=8, steps=40) == ""


def test_methods_that_did_not_act_are_not_judged(tiny, tmp_path):
    methods = ("plain", "ema:decay=0.9", "lookahead", "swa")
    config = CompareConfig(tasks=(tiny,), methods=methods, seeds=3)
    options = RunOptions(out=tmp_path, device="cpu", executor="inline")
    done = run_comparison(config, options)
    assert done.error is None
    (task,) = summarize_run(done.folder).tasks
    found = {result.method: result for result in task.results["error"]}
    assert [r.verdict for r in found.values()][2:] == 2 * ["did not act"]
    # They are no part of the family that is corrected over.
    assert found["lookahead"].difference is None
    ema = found["ema:decay=0.9"].difference
    assert ema.p_holm == ema.p
    assert (
        "did not act",
        "lookahead did not act in this run: 12 steps, k = 100; try lookahead:k=2.",
    ) in verdicts(task)
    assert "did not act: lookahead (12 steps, k = 100; try" in best_sentence(task)


def test_a_comparison_in_which_nothing_acted_says_so(tiny, tmp_path):
    config = CompareConfig(tasks=(tiny,), methods=("plain", "lookahead"), seeds=3)
    options = RunOptions(out=tmp_path, device="cpu", executor="inline")
    (task,) = run_comparison(config, options).summary.tasks
    assert best_sentence(task).startswith("Did not act: lookahead (12 steps, k = 100")
    assert best_of(task) == "did not act"


SCRIPT = """
import sys, torch, switch_ema

torch.manual_seed(int(sys.argv[1]))
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
trial = switch_ema.trial(model, optimizer)
for _ in range(30):
    optimizer.zero_grad()
    (model(torch.randn(8, 2)) - 1).square().mean().backward()
    optimizer.step()
trial.evaluate(lambda: {"loss": model.weight.square().sum().item()})
"""


def test_methods_in_a_script_are_checked_as_well(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    config = CompareConfig(
        tasks=(f"script:{sys.executable} train.py {{seed}}",),
        methods=("plain", "ema:decay=0.9", "lookahead"),
        seeds=1,
    )
    options = RunOptions(out=tmp_path, device="cpu", executor="inline")
    done = run_comparison(config, options)
    assert done.error is None
    (task,) = done.summary.tasks
    found = [(r.verdict, r.idle) for r in task.results["loss"][1:]]
    assert found == [
        ("undecided", ""),
        ("did not act", "30 steps, k = 100; try lookahead:k=5"),
    ]
