"""ResNet-18 for small images (He et al., 2016)."""

from typing import cast

from torch import Tensor, nn
from torch.nn.functional import relu


def resnet18(channels: int, outputs: int) -> nn.Sequential:
    """Make the CIFAR variant: a 3x3 stem of stride 1 and no pooling after it."""
    layers: list[nn.Module] = [*_conv(channels, 64, 3, 1), nn.ReLU()]
    before = 64
    for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Block(before, width, stride), Block(width, width, 1)]
        before = width
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, outputs)]
    return nn.Sequential(*layers, *head)


class Block(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(*_conv(before, width, 3, stride))
        self.second = nn.Sequential(*_conv(width, width, 3, 1))
        same = before == width and stride == 1
        around: list[nn.Module] = [] if same else _conv(before, width, 1, stride)
        self.around = nn.Sequential(*around)

    def forward(self, x: Tensor) -> Tensor:
        """Add what the convolutions found to what came in."""
        found = self.second(relu(self.first(x)))
        return relu(cast(Tensor, found + self.around(x)))


def _conv(before: int, width: int, kernel: int, stride: int) -> list[nn.Module]:
    convolution = nn.Conv2d(
        before, width, kernel, stride=stride, padding=kernel // 2, bias=False
    )
    return [convolution, nn.BatchNorm2d(width)]
