"""Settings of an optimizer that are changed after it was made."""

import pytest
import torch

from switch_ema.bench.errors import UsageError
from switch_ema.bench.optimizers.overrides import change_optimizer
from switch_ema.bench.spec import parse_method_spec


def changed(text):
    groups = [
        {"params": [torch.zeros(1)]},
        {"params": [torch.zeros(1)], "lr": 0.01, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.1, weight_decay=0.2)
    change_optimizer(optimizer, parse_method_spec(f"ema@{text}").changes)
    return [(group["lr"], group["weight_decay"]) for group in optimizer.param_groups]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lr*0.5", [(0.05, 0.2), (0.005, 0.0)]),
        ("lr=0.4", [(0.4, 0.2), (0.04, 0.0)]),
        ("lr=0.4,lr*0.5", [(0.2, 0.2), (0.02, 0.0)]),
        ("weight_decay=0.1", [(0.1, 0.1), (0.01, 0.0)]),
    ],
)
def test_groups_keep_their_ratios(text, expected):
    for found, wanted in zip(changed(text), expected, strict=True):
        assert found == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("momentum=0.9", "AdamW has no setting 'momentum'; it has lr, betas"),
        ("weight_decay=-1", "weight_decay must be positive, got -1"),
        ("weight_decay=much", "weight_decay must be a number, got 'much'"),
    ],
)
def test_what_cannot_be_changed(text, message):
    with pytest.raises(UsageError, match=message):
        changed(text)
