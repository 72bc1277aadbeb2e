"""One small real training, that every trainer repeats and plain PyTorch defines."""

from functools import cache

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from switch_ema import Averager, constant, create_averager

STEPS, BATCH, EPOCHS = 4, 16, 3
OPTIONS = {"decay": constant(0.9)}


@cache
def digits() -> tuple[Tensor, Tensor]:
    data = load_digits()
    images = torch.tensor(data.data[: STEPS * BATCH], dtype=torch.float32) / 16
    return images, torch.tensor(data.target[: STEPS * BATCH])


def loader(batch: int = BATCH) -> DataLoader:
    """Always the same batches in the same order."""
    return DataLoader(TensorDataset(*digits()), batch_size=batch)


def network(seed: int = 0) -> nn.Module:
    """Without a bias before the norm: its gradient is rounding, which Adam blows up."""
    torch.manual_seed(seed)
    first = nn.Linear(64, 16, bias=False)
    return nn.Sequential(first, nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))


def small_network() -> nn.Module:
    """Without batch statistics, which differ between processes."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-2)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    """For two processes: Adam would blow up the rounding of tiny gradients."""
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def loss_of(model: nn.Module, batch) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def plain(
    method: str = "switch-ema",
    epochs: int = EPOCHS,
    accumulate: int = 1,
    batch: int = BATCH,
    model: nn.Module | None = None,
    make_optimizer=None,
    **options,
) -> Averager:
    """The plain-PyTorch loop that the trainers are held against."""
    model = model or network()
    optimizer = (make_optimizer or adam)(model)
    averager = create_averager(method, model, optimizer, **(OPTIONS | options))
    for _ in range(epochs):
        batches = loader(batch)
        for i, data in enumerate(batches, start=1):
            (loss_of(model, data) / accumulate).backward()
            if i % accumulate == 0 or i == len(batches):
                optimizer.step()
                optimizer.zero_grad()
        averager.end_epoch()
    return averager


def assert_close(first, second, prefix: str = "") -> None:
    """Equal names and, to 1e-6, equal values."""
    first = {name.removeprefix(prefix): value for name, value in first.items()}
    assert first.keys() == second.keys()
    for name, value in first.items():
        torch.testing.assert_close(value, second[name], rtol=0, atol=1e-6, msg=name)


WITHOUT_STATE = "no state of the averager"
"""What is said when a checkpoint without one is resumed."""


def assert_agree(averager: Averager, reference: Averager, prefix: str = "") -> None:
    """Equal averages, live weights and counts."""
    averaged, live = averager.averaged_state_dict(), averager.live_state_dict()
    assert_close(averaged, reference.averaged_state_dict(), prefix)
    assert_close(live, reference.live_state_dict(), prefix)
    for count in ("steps", "epochs", "switches"):
        assert getattr(averager, count) == getattr(reference, count), count


SCORES = (0.5, 0.9, 0.1)
"""Made-up held-out scores of three epochs: the second average is the best."""

CURVES = {**OPTIONS, "decays": [0.5, "constant(0.9)"], "log_averaging": True}
"""Options with which a trainer measures further averages, one of them the main one."""


def assert_both_curves(found: dict[str, list[dict[str, float]]], name: str) -> None:
    """What was measured in each epoch, by the value of ``evaluate``."""
    averaged, live, both = (found[key] for key in ("averaged", "live", "both"))
    assert len(both) == EPOCHS
    for of_average, of_live, row in zip(averaged, live, both, strict=True):
        value = pytest.approx(of_average[name], rel=1e-5)
        assert row[name] == row[f"{name}_ema_constant(0.9)"] == value
        assert row[f"{name}_live"] == pytest.approx(of_live[name], rel=1e-5)
        assert len({round(row[f"{name}{end}"], 6) for end in ENDS}) == 3
        assert f"{name}_live" not in of_average | of_live


ENDS = ("", "_live", "_ema_0.5")


class Interrupted(Exception):
    """What a kill or a failing evaluation is simulated with."""
