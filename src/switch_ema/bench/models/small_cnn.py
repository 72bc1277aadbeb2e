"""A convolutional network that trains on a CPU."""

from torch import nn


def small_cnn(channels: int, side: int, outputs: int) -> nn.Sequential:
    """Three convolutions with batch normalisation, each halving the image.

    The last map is not averaged: where something is, and how it lies, matters for
    some tasks. Images must have sides of at least 8 pixels.
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
