"""Wide residual networks for small images (Zagoruyko & Komodakis, 2016)."""

from typing import cast

import torch
from timm.layers.drop import DropPath
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, relu


class WideResNet(nn.Module):
    """WRN-depth-widen: three groups of pre-activation blocks, of width 16, 32 and 64.

    The layers follow the original publication. The code released with Switch EMA has
    leaky ReLUs and biases in the convolutions instead.

    Args:
        depth: Number of layers; ``6 * n + 4`` for n blocks in each group.
        widen: Factor applied to the widths.
        num_classes: Outputs.
        in_channels: Channels of the images.
        drop_path: Rate of stochastic depth in the last block; rates rise from 0.
        stem_stride: Stride of the first convolution, 1 in the publication.
    """

    def __init__(
        self,
        depth: int,
        widen: int,
        num_classes: int,
        *,
        in_channels: int = 3,
        drop_path: float = 0.0,
        stem_stride: int = 1,
    ) -> None:
        super().__init__()
        each, rest = divmod(depth - 4, 6)
        if rest or each < 1:
            raise ValueError(
                f"depth must be 6 * n + 4 with n of at least 1, got {depth}."
            )
        self.stem = _conv(in_channels, 16, 3, stem_stride)
        rates = iter(torch.linspace(0, drop_path, 3 * each, device="cpu").tolist())
        blocks: list[nn.Module] = []
        before = 16
        for width, stride in ((16, 1), (32, 2), (64, 2)):
            for index in range(each):
                after = width * widen
                step = stride if index == 0 else 1
                blocks.append(WideBlock(before, after, step, next(rates)))
                before = after
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.BatchNorm2d(before)
        self.head = nn.Linear(before, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of images (examples, channels, height, width)."""
        x = relu(self.norm(self.blocks(self.stem(x))))
        return cast(Tensor, self.head(adaptive_avg_pool2d(x, 1).flatten(1)))


class WideBlock(nn.Module):
    """Normalise, activate and convolve, twice, with a shortcut."""

    def __init__(self, before: int, width: int, stride: int, drop_path: float) -> None:
        super().__init__()
        self.first_norm = nn.BatchNorm2d(before)
        self.first = _conv(before, width, 3, stride)
        self.second_norm = nn.BatchNorm2d(width)
        self.second = _conv(width, width, 3, 1)
        same = before == width and stride == 1
        self.around = None if same else _conv(before, width, 1, stride)
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor) -> Tensor:
        """Add the output of the convolutions to the shortcut."""
        active = relu(self.first_norm(x))
        found = self.second(relu(self.second_norm(self.first(active))))
        # A shortcut that changes the shape starts after the shared activation.
        around = x if self.around is None else self.around(active)
        return cast(Tensor, around + self.drop_path(found))


def _conv(before: int, width: int, kernel: int, stride: int) -> nn.Conv2d:
    convolution = nn.Conv2d(
        before, width, kernel, stride=stride, padding=kernel // 2, bias=False
    )
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return convolution
