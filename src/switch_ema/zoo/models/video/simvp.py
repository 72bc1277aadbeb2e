"""SimVP: convolutions that predict the next ten frames from ten frames at once.

An encoder processes each frame separately, a translator takes the features of all
frames as the channels of one image, and a decoder makes each frame (Gao et al., 2022).
The first version's translator is a U-Net of Inception blocks; the second's uses gated
spatio-temporal attention (Tan et al., 2022); others have the blocks of image networks.
Sizes and details follow OpenSTL.
"""

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from switch_ema.zoo.data.sources import need
from switch_ema.zoo.models.video.metaformers import METAFORMERS, Block

FRAMES = 10
"""Input frames, and predicted frames."""
_FIRST_DROP = 0.01
"""Stochastic depth of the second version's first block."""
_TRANSLATORS = ("inception", "gsta", *METAFORMERS)


class SimVP(nn.Module):
    """Encoder, translator and decoder.

    Args:
        translator: ``inception`` (the first version), ``gsta`` (the second), or a name
            of ``METAFORMERS``.
        width: Channels of a frame's features.
        hidden: Channels in the translator.
        depth: Blocks of the translator; the U-Net has as many on each side.
        kernels: Sizes of the convolutions in an Inception block.
        channels: Channels of a frame.
        side: Height and width of a frame, on which Swin and MLP-Mixer depend.
    """

    def __init__(
        self,
        translator: str,
        *,
        width: int,
        hidden: int,
        depth: int,
        kernels: Sequence[int] = (3, 5, 7, 11),
        channels: int = 1,
        side: int = 64,
    ) -> None:
        super().__init__()
        if translator not in _TRANSLATORS:
            raise ValueError(
                f"translator must be one of {', '.join(_TRANSLATORS)}, "
                f"got {translator!r}."
            )
        self.encoder = nn.ModuleList(
            _Convolution(channels if index == 0 else width, width, halves=index % 2 > 0)
            for index in range(4)
        )
        frames = FRAMES * width
        self.translator: nn.Module = (
            _InceptionUNet(frames, hidden, depth, kernels)
            if translator == "inception"
            else _blocks(_block_of(translator), frames, hidden, depth, side // 4)
        )
        self.decoder = nn.ModuleList(
            _Convolution(width, width, doubles=index % 2 == 0) for index in range(4)
        )
        self.readout = nn.Conv2d(width, channels, 1)

    def forward(self, clips: Tensor) -> Tensor:
        """Predict the frames after those given, batch x 10 x channels x side x side."""
        count, frames = clips.shape[:2]
        first = features = self.encoder[0](clips.flatten(0, 1))
        for layer in list(self.encoder)[1:]:
            features = layer(features)
        together = features.reshape(count, -1, *features.shape[2:])
        features = self.translator(together).reshape(features.shape)
        for layer in list(self.decoder)[:-1]:
            features = layer(features)
        drawn = self.readout(self.decoder[-1](features + first))
        return cast(Tensor, drawn.view(count, frames, *drawn.shape[1:]))


class _Convolution(nn.Sequential):
    """A convolution that may halve or double the image, group norm, SiLU."""

    def __init__(
        self, inputs: int, outputs: int, *, halves: bool = False, doubles: bool = False
    ) -> None:
        wide = 4 * outputs if doubles else outputs
        convolution = nn.Conv2d(inputs, wide, 3, stride=1 + halves, padding=1)
        nn.init.trunc_normal_(convolution.weight, std=0.02)
        nn.init.zeros_(cast(Tensor, convolution.bias))
        up = [nn.PixelShuffle(2)] if doubles else []
        super().__init__(convolution, *up, nn.GroupNorm(2, outputs), nn.SiLU())


class _Inception(nn.Module):
    """A narrow layer, then a sum of grouped convolutions of several sizes."""

    def __init__(
        self, inputs: int, middle: int, outputs: int, kernels: Sequence[int]
    ) -> None:
        super().__init__()
        self.narrow = nn.Conv2d(inputs, middle, 1)
        groups = 8
        self.branches = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(middle, outputs, size, padding=size // 2, groups=groups),
                nn.GroupNorm(groups, outputs),
                nn.LeakyReLU(0.2),
            )
            for size in kernels
        )

    def forward(self, features: Tensor) -> Tensor:
        narrow = self.narrow(features)
        return torch.stack([branch(narrow) for branch in self.branches]).sum(0)


class _InceptionUNet(nn.Module):
    """Inception blocks with skip connections between mirrored ones."""

    def __init__(
        self, channels: int, hidden: int, depth: int, kernels: Sequence[int]
    ) -> None:
        super().__init__()
        inputs = [channels, *[hidden] * (depth - 1)]
        self.down = nn.ModuleList(
            _Inception(width, hidden // 2, hidden, kernels) for width in inputs
        )
        sizes = [(hidden, hidden), *[(2 * hidden, hidden)] * (depth - 2)]
        sizes.append((2 * hidden, channels))
        self.up = nn.ModuleList(
            _Inception(width, hidden // 2, outputs, kernels) for width, outputs in sizes
        )

    def forward(self, features: Tensor) -> Tensor:
        skips: list[Tensor] = []
        for block in self.down:
            features = block(features)
            skips.append(features)
        skips.pop()  # the deepest block has no skip partner
        features = self.up[0](features)
        for block in list(self.up)[1:]:
            features = block(torch.cat([features, skips.pop()], 1))
        return features


def _block_of(translator: str) -> Block:
    return _GatedAttention if translator == "gsta" else METAFORMERS[translator][1]


def _blocks(
    block: Block, channels: int, hidden: int, depth: int, side: int
) -> nn.Sequential:
    """Return a translator of blocks; the first and the last are followed by a resize.

    Stochastic depth falls from block to block.
    """
    # OpenSTL's rates of stochastic depth fall from 0.01 to the configured 0.
    rates = [_FIRST_DROP * (1 - index / (depth - 1)) for index in range(depth)]
    layers = [block(channels, 0, rates[0], side), nn.Conv2d(channels, hidden, 1)]
    layers += [block(hidden, i, rates[i], side) for i in range(1, depth)]
    return nn.Sequential(*layers, nn.Conv2d(hidden, channels, 1))


class _GatedAttention(nn.Module):
    """Gated spatio-temporal attention and a perceptron, each with a shortcut.

    The attention decomposes a 21-pixel kernel into depth-wise, dilated depth-wise and
    point-wise convolutions; one half of its channels gates the other.
    """

    def __init__(
        self, width: int, index: int, drop: float, side: int, ratio: int = 8
    ) -> None:
        super().__init__()
        self.drop_path = need("timm.layers").DropPath(drop)
        self.norm = nn.BatchNorm2d(width)
        self.enter = nn.Sequential(nn.Conv2d(width, width, 1), nn.GELU())
        self.kernel = nn.Sequential(
            nn.Conv2d(width, width, 5, padding=2, groups=width),
            nn.Conv2d(width, width, 7, padding=9, dilation=3, groups=width),
            nn.Conv2d(width, 2 * width, 1),
            nn.GLU(1),
        )
        self.leave = nn.Conv2d(width, width, 1)
        wide = ratio * width
        self.perceptron = nn.Sequential(
            nn.BatchNorm2d(width),
            nn.Conv2d(width, wide, 1),
            nn.Conv2d(wide, wide, 3, padding=1, groups=wide),
            nn.GELU(),
            nn.Conv2d(wide, width, 1),
        )
        self.scales = nn.Parameter(torch.full((2, width, 1, 1), 0.01))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                area = math.prod(module.kernel_size)
                fan_out = area * module.out_channels // module.groups
                nn.init.normal_(module.weight, std=math.sqrt(2 / fan_out))
                nn.init.zeros_(cast(Tensor, module.bias))

    def forward(self, features: Tensor) -> Tensor:
        normal = self.norm(features)
        attended = self.leave(self.kernel(self.enter(normal))) + normal
        features = features + self.drop_path(self.scales[0] * attended)
        mixed = self.scales[1] * cast(Tensor, self.perceptron(features))
        return features + cast(Tensor, self.drop_path(mixed))
