"""Your own task: switch-ema compare examples/own_task.py:Wine tries averaging on it."""

import torch
from sklearn.datasets import load_wine
from torch import nn
from torch.nn.functional import cross_entropy

from switch_ema.bench.task import Batches, Metric, Recipe, Task


class Wine(Task):
    """Classify three kinds of wine by 13 chemical measurements."""

    metrics = (Metric(name="accuracy", higher_is_better=True, unit="%"),)
    recipe = Recipe(epochs=20, methods={"switch-ema": {"decay": 0.9}})

    def __init__(self, seed, *, split="test", size=100):  # Wine:size=60 sets an option
        super().__init__(seed)
        x, y = (torch.tensor(part) for part in load_wine(return_X_y=True))
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
        x, y = x.float()[order], y[order]
        x = (x - x[:size].mean(0)) / x[:size].std(0)
        if split == "validation":  # for tuning: hold out a fifth of the training data
            x, y, size = x[:size], y[:size], size * 4 // 5
        self.train, self.test = (x[:size], y[:size]), (x[size:], y[size:])

    def model(self):
        """Create the network; torch is already seeded."""
        return nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 3))

    def optimizer(self, model):
        """Create the optimizer."""
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def train_loader(self, epoch):
        """Return the batches of an epoch: `Batches` or a DataLoader."""
        return Batches(self.train, 10, self.seed, epoch=epoch)

    def loss(self, model, batch):
        """Return the loss of a batch."""
        return cross_entropy(model(batch[0]), batch[1])

    def evaluate(self, model):
        """Compute every metric."""
        x, y = (part.to(next(model.parameters()).device) for part in self.test)
        return {"accuracy": (model(x).argmax(1) == y).float().mean().item() * 100}


if __name__ == "__main__":
    torch.manual_seed(0)
    wine = Wine(seed=0)
    network = wine.model()
    sgd = wine.optimizer(network)
    for number in range(5):
        for wines in wine.train_loader(number):
            wine.loss(network, wines).backward()
            sgd.step()
            sgd.zero_grad()
        print(f"epoch {number + 1}: accuracy {wine.evaluate(network)['accuracy']:.1f}%")
