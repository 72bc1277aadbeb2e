"""MogaNet: gated convolutions of several ranges (Li et al., 2024)."""

import math
from collections.abc import Sequence
from typing import cast

import torch
from timm.layers.drop import DropPath
from torch import Tensor, nn
from torch.nn.functional import gelu, silu

# Initial scales of the branches and decompositions: almost off.
_SCALE_AT_START = 1e-5


class MogaNet(nn.Module):
    """Four stages of blocks that mix positions through a gate, then channels.

    Args:
        widths: Channels of each stage, multiples of 8.
        depths: Blocks of each stage.
        expansions: Hidden width factor of the channel mixing in each stage.
        num_classes: Outputs.
        in_channels: Channels of the images.
        drop_path: Rate of stochastic depth in the last block; rates rise from 0.
        stem_stride: Stride of both stem convolutions: 2 for large images, 1 for small.
    """

    def __init__(
        self,
        widths: Sequence[int],
        depths: Sequence[int],
        expansions: Sequence[int],
        num_classes: int,
        *,
        in_channels: int = 3,
        drop_path: float = 0.0,
        stem_stride: int = 2,
    ) -> None:
        super().__init__()
        rates = iter(torch.linspace(0, drop_path, sum(depths), device="cpu").tolist())
        stages: list[nn.Module] = []
        before = in_channels
        for width, depth, expansion in zip(widths, depths, expansions, strict=True):
            if stages:
                layers = _down(before, width, 2)
            else:
                half = width // 2
                layers = [*_down(before, half, stem_stride), nn.GELU()]
                layers += _down(half, width, stem_stride)
            layers += [MogaBlock(width, expansion, next(rates)) for _ in range(depth)]
            stages.append(nn.Sequential(*layers, nn.BatchNorm2d(width)))
            before = width
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(before, num_classes)
        self.apply(_initialise)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of images (examples, channels, height, width)."""
        return cast(Tensor, self.head(self.stages(x).mean((2, 3))))


class MogaBlock(nn.Module):
    """Mixes positions, then channels; each branch is normalised, scaled and added."""

    def __init__(self, width: int, expansion: int, drop_path: float) -> None:
        super().__init__()
        self.spatial_norm = nn.BatchNorm2d(width)
        self.spatial = GatedAggregation(width)
        self.spatial_scale = _scale(width)
        self.channel_norm = nn.BatchNorm2d(width)
        self.channel = ChannelAggregation(width, expansion * width)
        self.channel_scale = _scale(width)
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor) -> Tensor:
        """Add both branches, one after the other."""
        found = self.spatial(self.spatial_norm(x))
        x = x + self.drop_path(self.spatial_scale * found)
        found = self.channel(self.channel_norm(x))
        return cast(Tensor, x + self.drop_path(self.channel_scale * found))


class GatedAggregation(nn.Module):
    """Mixes positions: ``x + W silu(gate(z)) * silu(context(z))``.

    Here ``z`` is the projected input, with deviations from its mean over the image
    amplified. The inner shortcut is in the authors' code, not in their equation.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.project = nn.Conv2d(width, width, 1)
        self.decompose = Decomposition(width)
        self.gate = nn.Conv2d(width, width, 1)
        self.context = MultiOrderContext(width)
        self.join = nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Multiply the context of each position by its gate."""
        z = self.project(x)
        z = silu(self.decompose(z, z.mean((2, 3), keepdim=True)))
        return cast(Tensor, x + self.join(silu(self.gate(z)) * silu(self.context(z))))


class MultiOrderContext(nn.Module):
    """Depth-wise convolutions of three ranges, on shares 1:3:4 of the channels.

    All channels get a 5x5 kernel; the second share then 5x5 with dilation 2 (13x13 in
    all), the third 7x7 with dilation 3 (23x23 in all). A 1x1 convolution joins them.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        if width % 8:
            raise ValueError(f"widths must be multiples of 8, got {width}.")
        self.shares = [width // 8, 3 * width // 8, 4 * width // 8]
        self.near = _depthwise(width, 5, 1)
        self.middle = _depthwise(self.shares[1], 5, 2)
        self.far = _depthwise(self.shares[2], 7, 3)
        self.join = nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Gather the context of each position at three ranges."""
        near, middle, far = self.near(x).split(self.shares, 1)
        orders = torch.cat([near, self.middle(middle), self.far(far)], 1)
        return cast(Tensor, self.join(orders))


class ChannelAggregation(nn.Module):
    """Mixes channels: widen, convolve over 3x3 pixels, decompose, and narrow again.

    Learns one common channel and amplifies deviations from it.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.widen = nn.Conv2d(width, hidden, 1)
        self.near = _depthwise(hidden, 3, 1)
        self.shared = nn.Conv2d(hidden, 1, 1)
        self.decompose = Decomposition(hidden)
        self.narrow = nn.Conv2d(hidden, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Mix the channels of each position."""
        z = gelu(self.near(self.widen(x)))
        return cast(Tensor, self.narrow(self.decompose(z, gelu(self.shared(z)))))


class Decomposition(nn.Module):
    """Amplifies deviations: ``x + s * (x - common)``, s per channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = _scale(width)

    def forward(self, x: Tensor, common: Tensor) -> Tensor:
        """Add the scaled difference."""
        return x + self.scale * (x - common)


def _scale(width: int) -> nn.Parameter:
    return nn.Parameter(torch.full((1, width, 1, 1), _SCALE_AT_START))


def _down(before: int, width: int, stride: int) -> list[nn.Module]:
    convolution = nn.Conv2d(before, width, 3, stride=stride, padding=1)
    return [convolution, nn.BatchNorm2d(width)]


def _depthwise(width: int, kernel: int, dilation: int) -> nn.Conv2d:
    padding = dilation * (kernel // 2)
    return nn.Conv2d(
        width, width, kernel, padding=padding, dilation=dilation, groups=width
    )


def _initialise(module: nn.Module) -> None:
    """Initialise so that gradients keep their size across layers."""
    if isinstance(module, nn.Conv2d):
        reached = math.prod(module.kernel_size) * module.out_channels // module.groups
        nn.init.normal_(module.weight, std=math.sqrt(2 / reached))
    elif isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
    else:
        return
    if module.bias is not None:
        nn.init.zeros_(module.bias)
