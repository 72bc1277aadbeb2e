"""MNIST-1D (Greydanus, 2020): digits as signals of 40 numbers, generated here."""

import random
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from switch_ema._checks import check_choice, check_count
from switch_ema.bench.task import Batches, Loader, Recipe
from switch_ema.zoo.data.sources import need
from switch_ema.zoo.data.splits import choose_split
from switch_ema.zoo.models import mlp
from switch_ema.zoo.tasks.metrics import Classifier

LENGTH, CLASSES = 40, 10

_LEARNING_RATES = {"mlp": 5e-3, "cnn": 1e-2, "gru": 1e-2, "transformer": 3e-3}
"""Learning rates by network; the keys are the values of the option ``network``."""


class MNIST1D(Classifier):
    """MNIST-1D: digits as noisy signals of 40 numbers, for four kinds of network.

    Args:
        seed: random seed.
        split: evaluate on "test" or "validation" signals.
        network: the kind of network.
        size: training signals, at least 10.
        batch: signals per step.
    """

    networks = tuple(_LEARNING_RATES)
    recipe = Recipe(
        # 40 steps per epoch: at this decay a switch keeps about half of its progress.
        epochs=40,
        methods={"ema": {"decay": 0.96}, "switch-ema": {"decay": 0.96}},
    )

    def __init__(
        self,
        seed: int,
        *,
        split: str = "test",
        network: str = "cnn",
        size: int = 4000,
        batch: int = 100,
    ) -> None:
        super().__init__(seed)
        self.network = check_choice("network", network, self.networks)
        self.batch = check_count("batch", batch)
        x, y, x_test, y_test = _signals(check_count("size", size, 10), seed)
        (self.x, self.y), (self.x_eval, self.y_eval) = choose_split(
            split, seed, (x, y), (x_test, y_test)
        )

    @classmethod
    def seeds_at_once(cls, options: Mapping[str, Any]) -> int:
        """Train as many at once as fit in cache; recurrent layers cannot be stacked."""
        return 1 if options.get("network") == "gru" else 16

    def model(self) -> nn.Module:
        """Make the chosen network."""
        if self.network == "mlp":
            return mlp(LENGTH, 100, 100, CLASSES)
        if self.network == "cnn":
            return _cnn()
        return GRU() if self.network == "gru" else Transformer()

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Make AdamW with the network's learning rate."""
        return AdamW(model.parameters(), lr=_LEARNING_RATES[self.network])

    def train_loader(self, epoch: int) -> Loader:
        """Shuffle the signals."""
        return Batches((self.x, self.y), self.batch, self.seed, epoch=epoch)

    def evaluation_batches(self) -> Iterable[Tensor]:
        """Return the evaluation signals."""
        return torch.split(self.x_eval, 500)


@lru_cache(maxsize=4)
def _signals(size: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Generate training signals and 1,000 test signals.

    The MNIST-1D code seeds the global generators; their state is restored afterwards.
    """
    data = need("mnist1d.data")
    settings = data.get_dataset_args()
    settings.num_samples, settings.seed = size + 1000, seed
    settings.train_split = 1.0
    kept = random.getstate(), np.random.get_state()
    try:
        made = data.make_dataset(settings)
    finally:
        random.setstate(kept[0])
        np.random.set_state(kept[1])
    x = torch.tensor(made["x"], dtype=torch.float32)
    y = torch.tensor(made["y"], dtype=torch.long)
    return x[:size], y[:size], x[size:], y[size:]


def _cnn() -> nn.Sequential:
    """Make MNIST-1D's own baseline: three convolutions of stride 2."""
    return nn.Sequential(
        nn.Unflatten(1, (1, LENGTH)),
        *(nn.Conv1d(1, 25, 5, stride=2, padding=1), nn.ReLU()),
        *(nn.Conv1d(25, 25, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.Conv1d(25, 25, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(125, CLASSES)),
    )


class GRU(nn.Module):
    """Reads the signal in both directions and classifies the two final states."""

    def __init__(self, hidden: int = 24) -> None:
        super().__init__()
        self.reader = nn.GRU(1, hidden, batch_first=True, bidirectional=True)
        self.classifier = nn.Linear(2 * hidden, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Classify signals."""
        _, last = self.reader(x.unsqueeze(2))
        return cast(Tensor, self.classifier(last.transpose(0, 1).flatten(1)))


class Transformer(nn.Module):
    """Reads the signal in pieces of four numbers, with two attention layers."""

    def __init__(self, width: int = 32, piece: int = 4) -> None:
        super().__init__()
        self.piece = piece
        self.embed = nn.Linear(piece, width)
        self.place = nn.Parameter(torch.randn(LENGTH // piece, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.classifier = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        """Classify signals."""
        pieces = self.embed(torch.unflatten(x, 1, (-1, self.piece))) + self.place
        return cast(Tensor, self.classifier(self.layers(pieces).mean(1)))
