"""The paper's toy tasks: two classes of points in the plane, few of them labelled.

From the paper: 50 labelled points, 500 test points, a two-layer perceptron and SGD with
the fixed learning rate 0.01. It does not give the rest: 32 hidden units, batches of 10,
400 epochs and the noise of the points are our choice. Training has not converged by
then, so switching, which costs progress, hurts.
"""

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Optimizer

from switch_ema._checks import check_count, check_range
from switch_ema.bench.stacking.tasks import GatheredBatches
from switch_ema.bench.task import Batches, Loader, Metric, PlaneTask, Recipe
from switch_ema.zoo.data.sources import need
from switch_ema.zoo.data.splits import choose_split
from switch_ema.zoo.models import Stacked, mlp
from switch_ema.zoo.tasks.metrics import ACCURACY, one_class

LABELLED, TESTED = 50, 500


class TwoD(PlaneTask):
    """Points in the plane; all seeds train at once.

    Args:
        seeds: random seeds.
        split: evaluate on "test" or "validation" points.
        noise: standard deviation of the noise added to the points, in [0, 10).
        hidden: units of the hidden layer.
        lr: learning rate of SGD, in [0, 100).
        momentum: momentum of SGD, in [0, 1).
        batch: points per step.
    """

    metrics = (ACCURACY, Metric(name="loss", higher_is_better=False))
    recipe = Recipe(
        epochs=400, methods={"ema": {"decay": 0.9}, "switch-ema": {"decay": 0.9}}
    )

    def __init__(
        self,
        seeds: tuple[int, ...],
        *,
        split: str = "test",
        noise: float = 0.1,
        hidden: int = 32,
        lr: float = 0.01,
        momentum: float = 0.0,
        batch: int = 10,
    ) -> None:
        super().__init__(seeds)
        self.noise = check_range("noise", noise, 0, 10)
        self.hidden = check_count("hidden", hidden)
        self.lr = check_range("lr", lr, 0, 100)
        self.momentum = check_range("momentum", momentum, 0, 1)
        self.batch = check_count("batch", batch)
        parts = [self._split(split, seed) for seed in seeds]
        # Each is (seeds, points, ...).
        self.x, self.y, self.x_eval, self.y_eval = (
            torch.stack(part) for part in zip(*parts, strict=True)
        )

    @abstractmethod
    def points(self, count: int, seed: int) -> tuple[Any, Any]:
        """Draw shuffled points and their classes."""

    def _split(self, split: str, seed: int) -> tuple[Tensor, ...]:
        points, classes = self.points(LABELLED + TESTED, seed)
        x = torch.tensor(points, dtype=torch.float32)
        y = torch.tensor(classes, dtype=torch.long)
        labelled, tested = (x[:LABELLED], y[:LABELLED]), (x[LABELLED:], y[LABELLED:])
        train, evaluated = choose_split(split, seed, labelled, tested)
        return *train, *evaluated

    def model(self) -> nn.Module:
        """Make one network per seed, each initialised from its own seed."""
        networks = []
        for seed in self.seeds:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                networks.append(mlp(2, self.hidden, 2))
        return Stacked(networks)

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Make the paper's optimizer."""
        return SGD(model.parameters(), lr=self.lr, momentum=self.momentum)

    def train_loader(self, epoch: int) -> Loader:
        """Shuffle the points of each seed by that seed."""
        data = zip(self.seeds, self.x, self.y, strict=True)
        return GatheredBatches(
            [Batches((x, y), self.batch, seed, epoch=epoch) for seed, x, y in data]
        )

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Sum the losses over seeds, so each network gets the gradient of its own."""
        x, y = batch
        return self._losses(model(x), y).sum()

    def evaluate(self, model: nn.Module) -> dict[str, Any]:
        """Measure accuracy in percent and cross-entropy of each seed."""
        device = next(model.parameters()).device
        outputs, y = model(self.x_eval.to(device)), self.y_eval.to(device)
        accuracy = (outputs.argmax(2) == y).double().mean(1) * 100
        return {
            "accuracy": accuracy.tolist(),
            "loss": self._losses(outputs, y).double().tolist(),
        }

    def trivial(self) -> dict[str, dict[str, float]]:
        """Measure the most frequent class of the first seed's test points."""
        return one_class(self.y_eval[0])

    def predictions(self, model: nn.Module) -> tuple[Tensor, Tensor]:
        """Classify the test points of all seeds together."""
        device = next(model.parameters()).device
        outputs = model(self.x_eval.to(device)).flatten(0, 1)
        return outputs.cpu(), self.y_eval.flatten()

    @staticmethod
    def _losses(outputs: Tensor, y: Tensor) -> Tensor:
        # cross_entropy expects the classes in dimension 1.
        return cross_entropy(outputs.transpose(1, 2), y, reduction="none").mean(1)


class Circles(TwoD):
    """Two noisy concentric circles; 50 labelled points (the paper's toy)."""

    def points(self, count: int, seed: int) -> tuple[Any, Any]:
        """Draw from the circles."""
        make = need("sklearn.datasets").make_circles
        points, classes = make(count, noise=self.noise, factor=0.5, random_state=seed)
        return points, classes


class Moons(TwoD):
    """Two noisy half-moons that interlock; 50 labelled points (the paper's toy)."""

    def points(self, count: int, seed: int) -> tuple[Any, Any]:
        """Draw from the moons."""
        make = need("sklearn.datasets").make_moons
        points, classes = make(count, noise=self.noise, random_state=seed)
        return points, classes
