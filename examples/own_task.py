"""Your own task: does averaging help there?

    switch-ema compare examples/own_task.py:Wine

A task is one class: data, model, optimizer, loss and metrics. The seed decides what is
drawn at random. Options are keywords: ``examples/own_task.py:Wine:size=60``.
"""

import torch
from sklearn.datasets import load_wine
from torch import nn

from switch_ema.bench.task import Batches, Metric, Recipe, Task


class Wine(Task):
    """Three kinds of wine, told apart by 13 chemical measurements."""

    metrics = (
        Metric(name="accuracy", higher_is_better=True, unit="%"),
        Metric(name="nll", higher_is_better=False),
    )
    recipe = Recipe(epochs=20, methods={"switch-ema": {"decay": 0.9}})

    def __init__(self, seed, *, split="test", size=100):
        super().__init__(seed)
        wine = load_wine()
        order = torch.randperm(178, generator=torch.Generator().manual_seed(seed))
        x, y = torch.tensor(wine.data).float()[order], torch.tensor(wine.target)[order]
        x = (x - x[:size].mean(0)) / x[:size].std(0)
        if split == "validation":  # for tuning: a fifth of the training data
            x, y, size = x[:size], y[:size], size * 4 // 5
        self.train, self.test = (x[:size], y[:size]), (x[size:], y[size:])

    def model(self):
        return nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 3))

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def train_loader(self, epoch):
        return Batches(self.train, 10, self.seed, epoch=epoch)

    def loss(self, model, batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def evaluate(self, model):
        x, y = (part.to(next(model.parameters()).device) for part in self.test)
        outputs = model(x)
        accuracy = (outputs.argmax(1) == y).float().mean().item() * 100
        nll = nn.functional.cross_entropy(outputs, y).item()
        return {"accuracy": accuracy, "nll": nll}


if __name__ == "__main__":
    from switch_ema.bench.try_task import try_task

    try_task(Wine(seed=0))
