"""A learning rate for each network of a stack."""

import pytest
import torch
from torch.optim import SGD, Adagrad, Adam, AdamW, RAdam

from switch_ema.bench.errors import UsageError
from switch_ema.bench.optimizers.rates import rate_factor, scale_steps
from switch_ema.bench.spec import Change

FACTORS = (0.25, 1.0, 4.0)


def trained(make, stacks, factors=None):
    """Train a quadratic; the gradients depend on where each network is."""
    torch.manual_seed(0)
    curvature = torch.rand(5, dtype=torch.double)
    parameter = torch.nn.Parameter(torch.ones(stacks, 5, dtype=torch.double))
    optimizer = make([parameter])
    if factors is not None:
        scale_steps(optimizer, factors)
    for _ in range(12):
        optimizer.zero_grad()
        (curvature * parameter**2).sum().backward()
        optimizer.step()
    return parameter.detach()


@pytest.mark.parametrize(
    "make",
    [
        lambda p, lr=0.02: SGD(p, lr=lr, momentum=0.9, nesterov=True, weight_decay=0.1),
        lambda p, lr=0.02: Adam(p, lr=lr, weight_decay=0.1),
        lambda p, lr=0.02: AdamW(p, lr=lr, weight_decay=0.1),
        lambda p, lr=0.02: RAdam(p, lr=lr),
    ],
    ids=["sgd", "adam", "adamw", "radam"],
)
def test_each_network_trains_as_at_its_own_rate(make):
    stacked = trained(make, len(FACTORS), FACTORS)
    for own, factor in zip(stacked, FACTORS, strict=True):
        (alone,) = trained(lambda p, factor=factor: make(p, 0.02 * factor), 1)
        torch.testing.assert_close(own, alone, rtol=1e-12, atol=1e-12)


def test_what_is_not_proportional_to_the_rate_is_refused():
    optimizer = Adagrad([torch.zeros(2, 1, requires_grad=True)])
    with pytest.raises(UsageError, match="AdamW, RAdam, got Adagrad; choose"):
        scale_steps(optimizer, (1.0, 2.0))


def test_a_rate_must_be_positive():
    optimizer = SGD([torch.zeros(1)], lr=0.1)
    with pytest.raises(UsageError, match="lr must be positive, got 0"):
        rate_factor(optimizer, [Change("lr", 0)])
