"""CSPDarknet and the path-aggregation pyramid (PAFPN) of YOLOX.

A CSP layer sends half of its channels through residual blocks and bypasses them with
the other half. The pyramid has a coarse-to-fine path, like an FPN, and one back.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate


class ConvBlock(nn.Sequential):
    """Convolution, batch normalisation, SiLU."""

    def __init__(self, inputs: int, outputs: int, side: int, stride: int = 1) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, side, stride, (side - 1) // 2, bias=False),
            nn.BatchNorm2d(outputs),
            nn.SiLU(inplace=True),
        )


class Bottleneck(nn.Module):
    """A 1x1 and a 3x3 convolution, with an optional shortcut."""

    def __init__(self, width: int, *, shortcut: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            ConvBlock(width, width, 1), ConvBlock(width, width, 3)
        )
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        """Return the layers' output, plus the input if there is a shortcut."""
        y: Tensor = self.layers(x)
        return x + y if self.shortcut else y


class _CSPLayer(nn.Module):
    """Half of the channels go through bottlenecks, half bypass them."""

    def __init__(
        self, inputs: int, outputs: int, blocks: int, *, shortcut: bool = True
    ) -> None:
        super().__init__()
        half = outputs // 2
        self.through = nn.Sequential(
            ConvBlock(inputs, half, 1),
            *(Bottleneck(half, shortcut=shortcut) for _ in range(blocks)),
        )
        self.past = ConvBlock(inputs, half, 1)
        self.merge = ConvBlock(2 * half, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return both halves, merged."""
        merged: Tensor = self.merge(torch.cat([self.through(x), self.past(x)], 1))
        return merged


class _Focus(nn.Module):
    """Moves 2x2 pixel squares into channels, then convolves."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.convolution = ConvBlock(12, outputs, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return features of half the size."""
        y: Tensor = self.convolution(nn.functional.pixel_unshuffle(x, 2))
        return y


class _SpatialPyramidPooling(nn.Module):
    """Concatenates max pooling over several window sizes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.reduce = ConvBlock(width, width // 2, 1)
        self.pools = nn.ModuleList(nn.MaxPool2d(s, 1, s // 2) for s in (5, 9, 13))
        self.merge = ConvBlock(width // 2 * 4, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the features, merged."""
        x = self.reduce(x)
        merged: Tensor = self.merge(torch.cat([x, *(p(x) for p in self.pools)], 1))
        return merged


class CSPDarknet(nn.Module):
    """The backbone; features of strides 8, 16 and 32.

    Args:
        depth: Share of the full network's blocks (3, 9, 9, 3).
        width: Share of its channels (64 to 1024).
    """

    def __init__(self, depth: float, width: float) -> None:
        super().__init__()
        w = [int(channels * width) for channels in (64, 128, 256, 512, 1024)]
        n = [max(round(blocks * depth), 1) for blocks in (3, 9, 9, 3)]
        self.stem = _Focus(w[0])
        self.stages = nn.ModuleList(
            nn.Sequential(
                ConvBlock(w[i], w[i + 1], 3, 2), _CSPLayer(w[i + 1], w[i + 1], n[i])
            )
            for i in range(3)
        )
        self.stages.append(
            nn.Sequential(
                ConvBlock(w[3], w[4], 3, 2),
                _SpatialPyramidPooling(w[4]),
                _CSPLayer(w[4], w[4], n[3], shortcut=False),
            )
        )

    def forward(self, images: Tensor) -> list[Tensor]:
        """Return the features, from fine to coarse."""
        x, features = self.stem(images), []
        for stage in self.stages:
            x = stage(x)
            features.append(x)
        return features[1:]


class PathPyramid(nn.Module):
    """The pyramid: coarse to fine and back.

    Args:
        depth: Share of the full network's blocks.
        width: Share of its channels (256, 512 and 1024).
    """

    def __init__(self, depth: float, width: float) -> None:
        super().__init__()
        fine, middle, coarse = (int(channels * width) for channels in (256, 512, 1024))
        blocks = max(round(3 * depth), 1)

        def layer(inputs: int, outputs: int) -> _CSPLayer:
            return _CSPLayer(inputs, outputs, blocks, shortcut=False)

        self.reduce_coarse = ConvBlock(coarse, middle, 1)
        self.merge_middle = layer(2 * middle, middle)
        self.reduce_middle = ConvBlock(middle, fine, 1)
        self.merge_fine = layer(2 * fine, fine)
        self.down_fine = ConvBlock(fine, fine, 3, 2)
        self.back_middle = layer(2 * fine, middle)
        self.down_middle = ConvBlock(middle, middle, 3, 2)
        self.back_coarse = layer(2 * middle, coarse)

    def forward(self, features: list[Tensor]) -> list[Tensor]:
        """Return fused features of the same strides."""
        fine, middle, coarse = features
        top = self.reduce_coarse(coarse)
        middle = self.merge_middle(torch.cat([_doubled(top), middle], 1))
        between = self.reduce_middle(middle)
        fine = self.merge_fine(torch.cat([_doubled(between), fine], 1))
        middle = self.back_middle(torch.cat([self.down_fine(fine), between], 1))
        coarse = self.back_coarse(torch.cat([self.down_middle(middle), top], 1))
        return [fine, middle, coarse]


def _doubled(x: Tensor) -> Tensor:
    return interpolate(x, scale_factor=2.0, mode="nearest")
