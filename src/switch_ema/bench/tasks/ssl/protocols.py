"""How good are the features? A linear probe, and k nearest neighbours."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from switch_ema.bench.tasks.metrics import percent_correct

PROTOCOLS = ("linear", "fine-tune")
AT_ONCE = 2**25
"""Numbers per step: the features of ImageNet fit into memory once, not twice."""


@dataclass(frozen=True)
class Labelled:
    """Features or images with their classes: to learn from, and to be judged by."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    classes: int

    def first(self, count: int, tested: int) -> "Labelled":
        """Keep so many to learn from, and so many to be judged by."""
        return Labelled(
            self.x[:count],
            self.y[:count],
            self.x_test[:tested],
            self.y_test[:tested],
            self.classes,
        )

    def accuracy(self, predicted: Tensor) -> float:
        """Return the accuracy of predicted classes in percent."""
        return percent_correct(predicted, self.y_test)


def linear_probe(data: Labelled, *, ridge: float = 1e-3) -> float:
    """Classify by ridge regression on one-hot targets, which has a closed form.

    Features are brought to mean 0 and deviation 1 first; ``ridge`` is the penalty per
    example. It is no softmax regression by SGD as in the literature, but needs no
    settings of its own and takes milliseconds.
    """
    rows = max(AT_ONCE // data.x.shape[1], 1)
    mean = sum(part.double().sum(0) for part in torch.split(data.x, rows)) / len(data.x)
    width, classes = data.x.shape[1], data.classes
    gram = torch.zeros(width, width, dtype=torch.double)
    sums = torch.zeros(classes, width, dtype=torch.double)
    for x, y in zip(torch.split(data.x, rows), torch.split(data.y, rows), strict=True):
        centred = x.double() - mean
        gram += centred.T @ centred
        sums.index_add_(0, y, centred)
    deviation = (gram.diagonal() / (len(data.x) - 1)).sqrt()
    # A feature that is constant, as after a collapse, tells nothing.
    scale = torch.where(deviation > 1e-8, 1 / deviation, 0.0)
    gram, sums = gram * scale * scale[:, None], sums * scale
    penalty = ridge * len(data.x) * torch.eye(width, dtype=torch.double)
    weights = torch.linalg.solve(gram + penalty, sums.T)
    centre = data.y.bincount(minlength=classes).double() / len(data.y)
    found = [
        ((x.double() - mean) * scale @ weights + centre).argmax(1)
        for x in torch.split(data.x_test, rows)
    ]
    return data.accuracy(torch.cat(found))


def nearest_neighbours(
    data: Labelled, *, k: int = 20, temperature: float = 0.1
) -> float:
    """Let the k most similar vote, weighted by ``exp(cosine / temperature)``."""
    k = min(k, len(data.x))
    similarity = normalize(data.x_test, dim=1) @ normalize(data.x, dim=1).T
    nearest, index = similarity.topk(k, dim=1)
    votes = torch.zeros(len(data.x_test), data.classes)
    votes.scatter_add_(1, data.y[index], ((nearest - 1) / temperature).exp())
    return data.accuracy(votes.argmax(1))
