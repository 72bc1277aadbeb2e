"""A small training, part of which version 0.1.0 ran and stored in ``data/``."""

import torch
from torch import nn

from switch_ema import Steps, constant

OPTIONS = {
    "ema": {"decay": constant(0.8)},
    "switch-ema": {"decay": constant(0.8)},
    "swa": {},
    "lookahead": {"k": 3},
    "lawa": {"k": 2},
    "pswa": {"period": 2},
    "posthoc-ema": {},
    "literal-eq3": {"decay": constant(0.8), "every": Steps(4)},
}
"""What each stored averager was made with, apart from folders."""


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)).double()
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def train(model, optimizer, averager, batches, end=True):
    for batch in batches:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    if end:
        averager.end_epoch()
