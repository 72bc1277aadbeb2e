"""What was trained, in words: as the training really was."""

import pytest
import torch
from torch import nn

from switch_ema.bench.compare import run_comparison
from switch_ema.bench.execute.options import RunOptions
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.report.page import render_page
from switch_ema.bench.train.description import describe_batches, describe_optimizer


@pytest.mark.parametrize("stack", ["off", "auto"])
def test_a_run_says_what_was_trained_stacked_or_not(tmp_path, stack):
    config = CompareConfig(
        tasks=("digits:size=200",),
        methods=("plain", "switch-ema:decay=0.9"),
        optimizer="adamw:lr=0.002,weight_decay=0.1",
        seeds=3,
        epochs=2,
        schedule="cosine",
        stack=stack,
    )
    options = RunOptions(out=tmp_path, executor="inline", device="cpu")
    (task,) = run_comparison(config, options).summary.tasks
    assert task.trained["Network"].endswith("8,970 parameters")
    assert task.trained["Optimizer"].startswith(
        "AdamW, learning rate 0.002, betas (0.9"
    )
    assert "weight decay 0.1" in task.trained["Optimizer"]
    assert task.trained["Batch"] == "16 examples, 13 steps an epoch"
    assert task.trained["Learning rate"] == "cosine"
    assert task.options["switch-ema:decay=0.9"].startswith("decay=0.9, update_every=1")
    assert "switch_every=1" in task.options["switch-ema:decay=0.9"]


def test_the_optimizer_is_told_as_methods_and_sweeps_have_changed_it(tiny, tmp_path):
    config = CompareConfig(
        tasks=(tiny,), methods=("plain", "ema@lr*0.5"), seeds=1, sweep="lr=0.1,0.3"
    )
    options = RunOptions(out=tmp_path, executor="inline", device="cpu")
    summary = run_comparison(config, options).summary
    page = render_page(summary)
    for task, rates in zip(summary.tasks, ((0.1, 0.05), (0.3, 0.15)), strict=True):
        plain, half = (f"AdamW, learning rate {rate:g}, " for rate in rates)
        told = task.facts["Optimizer"]
        assert told.startswith(plain) and told in page
        assert "(plain); " + half in told and told.endswith(" (ema@lr*0.5)")


def test_groups_of_parameters_with_other_numbers_are_told_as_a_range():
    first, second = nn.Linear(1, 1), nn.Linear(1, 1)
    groups = [
        {"params": first.parameters(), "weight_decay": 0.1},
        {"params": second.parameters(), "lr": 0.5},
    ]
    told = describe_optimizer(torch.optim.SGD(groups, lr=0.1))
    assert told == "SGD, learning rate 0.1 to 0.5, weight decay 0.1 (some parameters)"


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        ({"x": torch.zeros(7, 2), "y": torch.zeros(7)}, "7 examples, "),
        (([torch.zeros(3, 8, 8), torch.zeros(3, 9, 9)], [{}, {}]), "2 examples, "),
        ((torch.tensor(1.0), "text"), ""),
        ("text", ""),
    ],
    ids=["dict", "pictures of several sizes", "no batch dimension", "text"],
)
def test_sizes_of_batches_of_many_kinds(batch, size):
    told = describe_batches(batch, 5, 1, stacked=False)
    assert told == f"{size}5 steps an epoch"


def test_accumulated_batches_are_told():
    told = describe_batches(torch.zeros(4, 1), 1, 3, stacked=False)
    assert told == "3 x 4 examples, 1 step an epoch"
