"""The multi-layer perceptron."""

from itertools import pairwise

from torch import nn


def mlp(*sizes: int) -> nn.Sequential:
    """Stack linear layers of these sizes with ReLU between them.

    >>> [type(layer).__name__ for layer in mlp(2, 8, 1)]
    ['Linear', 'ReLU', 'Linear']
    """
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
