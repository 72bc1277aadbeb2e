"""Small real trainings that the tests share."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from switch_ema import Steps, constant

DEVICE = os.environ.get("SWITCH_EMA_TEST_DEVICE", "cpu")
"""Where networks and batches are; see tests/averaging/devices/."""


def quick_options(folder: Path) -> dict[str, dict[str, Any]]:
    """Options of each method with which it acts often enough to be seen."""
    return {
        "ema": {"decay": constant(0.8)},
        "switch-ema": {"decay": constant(0.8)},
        "swa": {},
        "lawa": {"k": 2},
        "pswa": {"period": 2},
        "lookahead": {"k": 2},
        "literal-eq3": {"decay": constant(0.8), "every": Steps(4)},
        "snoo": {"k": 2},
        "pace": {"rate": 0.5, "strength": 0.5},
        "elastic-reset": {"decay": constant(0.8), "switch_every": Steps(4)},
        "bema": {},
        "swag": {"rank": 2},
        "tail-ema": {"decay": constant(0.8)},
        "posthoc-ema": {"folder": folder, "every": Steps(1000)},
    }


def scalar_model(value: float = 0.0) -> nn.Module:
    """One float64 weight, for trajectories worked out by hand."""
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.constant_(model.weight, value)
    return model


def move(model: nn.Module, to: float) -> None:
    """Do what an optimizer would: set the weight."""
    with torch.no_grad():
        model.weight.fill_(to)


def weight(model: nn.Module) -> float:
    return model.weight.item()


def shadow(averager) -> float:
    return averager.averaged_state_dict()["weight"].item()


def network(
    seed: int = 0, dtype: torch.dtype = torch.float32, device: str = DEVICE
) -> nn.Module:
    """A network with convolution, statistics, integers and tied weights."""
    torch.manual_seed(seed)
    with torch.device(device):
        return Network().to(dtype)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.body = nn.Linear(4, 4)
        self.head = nn.Linear(4, 4)
        self.head.weight = self.body.weight
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.stem(x)).relu().mean((2, 3))
        return self.head(self.body(x).relu()) * self.scale


class Odd(nn.Module):
    """Parameters of every kind that a model can have."""

    def __init__(self):
        super().__init__()
        self.zero_dim = nn.Parameter(torch.tensor(1.5))
        self.empty = nn.Parameter(torch.empty(0, 3))
        self.waves = nn.Parameter(torch.randn(3, 2, dtype=torch.complex64))
        self.transposed = nn.Parameter(torch.randn(4, 3).t())
        self.strided = nn.Parameter(torch.randn(6, 4)[::2, 1:3])
        self.precise = nn.Parameter(torch.randn(3, dtype=torch.float64))
        self.coarse = nn.Parameter(torch.randn(3, dtype=torch.bfloat16))
        self.channels = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        self.register_buffer("flags", torch.tensor([True, False]))
        self.register_buffer("counts", torch.tensor([1000, 2**40]))
        self.register_buffer("scratch", torch.randn(2), persistent=False)


def nudge(model, by=1.0):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(by)


def batches(
    count: int, seed: int = 1, dtype: torch.dtype = torch.float32
) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        x = torch.randn(8, 1, 5, 5, generator=generator, dtype=torch.float64)
        y = torch.randint(4, (8,), generator=generator)
        yield x.to(DEVICE, dtype), y.to(DEVICE)


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def train_step(model, optimizer, batch) -> None:
    optimizer.zero_grad()
    loss_of(model, batch).backward()
    optimizer.step()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def copy_of(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in state.items()}


def assert_same(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    """Equal names and bits."""
    assert list(first) == list(second)
    for name, tensor in first.items():
        assert tensor.dtype == second[name].dtype, name
        assert torch.equal(tensor, second[name]), name


def epoch(model, optimizer, averager, seed: int, steps: int = 3, dtype=torch.float32):
    for batch in batches(steps, seed, dtype):
        train_step(model, optimizer, batch)
    return averager.end_epoch()


def trained(make, dtype=torch.float32, epochs=2, **options):
    model = network(dtype=dtype)
    optimizer = sgd(model)
    averager = make(model, optimizer, **options)
    for seed in range(epochs):
        epoch(model, optimizer, averager, seed, dtype=dtype)
    return model, optimizer, averager


Maker = Callable[..., object]
