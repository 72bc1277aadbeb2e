"""A convolutional network that trains on a CPU."""

from torch import nn


def small_cnn(channels: int, outputs: int) -> nn.Sequential:
    """Three convolutions with batch normalisation, each halving the image.

    Any image size will do: the last feature map is averaged.
    """
    blocks: list[nn.Module] = []
    for width in (16, 32, 64):
        blocks += [
            nn.Conv2d(channels, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
        channels = width
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, outputs)]
    return nn.Sequential(*blocks, *head)
