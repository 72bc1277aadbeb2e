"""Networks of a few lines: the multi-layer perceptron and a small CNN."""

from itertools import pairwise

from torch import nn

from switch_ema._checks import check_choice
from switch_ema.zoo.models.catalog import create_network

IMAGE_NETWORKS = ("small-cnn", "resnet18", "mlp")
STACKS = {"small-cnn": 16, "mlp": 32}
"""Fastest number of networks to train at once on 8 by 8 images.

On larger images, and for a ResNet-18, computation outweighs overhead: at 32 by 32
pixels a stack of small CNNs takes a third longer than training them one by one.
"""


def image_network(name: str, channels: int, side: int, outputs: int) -> nn.Module:
    """Make one of ``IMAGE_NETWORKS`` for square images.

    ``resnet18`` is the paper's, with a stem for small images.
    """
    check_choice("network", name, IMAGE_NETWORKS)
    if name == "small-cnn":
        return small_cnn(channels, side, outputs)
    if name == "mlp":
        return nn.Sequential(nn.Flatten(), mlp(channels * side**2, 128, 128, outputs))
    return create_network(
        name, num_classes=outputs, image_size=side, in_channels=channels, stem="cifar"
    )


def mlp(*sizes: int) -> nn.Sequential:
    """Stack linear layers of these sizes with ReLU between them.

    >>> [type(layer).__name__ for layer in mlp(2, 8, 1)]
    ['Linear', 'ReLU', 'Linear']
    """
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def small_cnn(channels: int, side: int, outputs: int) -> nn.Sequential:
    """Three convolutions with batch normalisation, each halving the image.

    The last map is not pooled: position and orientation matter for some tasks. Images
    must have sides of at least 8 pixels.
    """
    blocks: list[nn.Module] = []
    for width in (16, 32, 64):
        blocks += [
            nn.Conv2d(channels, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
        channels, side = width, side // 2
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(channels * side**2, outputs))
