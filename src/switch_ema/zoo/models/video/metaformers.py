"""Translators of SimVP from image networks: blocks that mix positions, then channels.

Appendix B.5 of the paper benchmarks them on Moving MNIST. Sizes follow OpenSTL: hidden
layers of 8 times the width, 8 heads, windows of 4 by 4.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from switch_ema.zoo.data.sources import need

_RATIO, _HEADS, _WINDOW = 8, 8, 4
Block = Callable[[int, int, float, int], nn.Module]
"""Makes a block from its width, its index, its stochastic depth, and the side of its
input."""


def _vit(width: int, index: int, drop: float, side: int) -> nn.Module:
    block = need("timm.models.vision_transformer").Block
    return _OnTokens(
        block(width, _HEADS, mlp_ratio=_RATIO, qkv_bias=True, drop_path=drop)
    )


def _swin(width: int, index: int, drop: float, side: int) -> nn.Module:
    block = need("timm.models.swin_transformer").SwinTransformerBlock(
        width,
        (side, side),
        num_heads=_HEADS,
        window_size=_WINDOW,
        shift_size=_WINDOW // 2 if index % 2 else 0,
        mlp_ratio=_RATIO,
        drop_path=drop,
    )
    return _ChannelsLast(block)


def _mixer(width: int, index: int, drop: float, side: int) -> nn.Module:
    block = need("timm.models.mlp_mixer").MixerBlock
    return _OnTokens(block(width, side**2, mlp_ratio=(0.5, _RATIO), drop_path=drop))


def _convnext(width: int, index: int, drop: float, side: int) -> nn.Module:
    block: nn.Module = need("timm.models.convnext").ConvNeXtBlock(
        width, mlp_ratio=_RATIO, conv_mlp=True, ls_init_value=1e-6, drop_path=drop
    )
    return block


def _moganet(width: int, index: int, drop: float, side: int) -> nn.Module:
    from switch_ema.zoo.models.moganet import MogaBlock

    return MogaBlock(width, _RATIO, drop)


class _ConvMixer(nn.Module):
    """A depth-wise convolution of 11 by 11 with a shortcut, then a point-wise one."""

    def __init__(self, width: int, index: int, drop: float, side: int) -> None:
        super().__init__()
        self.spatial = nn.Sequential(
            nn.Conv2d(width, width, 11, groups=width, padding="same"),
            nn.GELU(),
            nn.BatchNorm2d(width),
        )
        self.channels = nn.Sequential(
            nn.Conv2d(width, width, 1), nn.GELU(), nn.BatchNorm2d(width)
        )

    def forward(self, features: Tensor) -> Tensor:
        return cast(Tensor, self.channels(features + self.spatial(features)))


class _PoolFormer(nn.Module):
    """Means of 3 by 3 positions instead of attention, then a perceptron."""

    def __init__(self, width: int, index: int, drop: float, side: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.GroupNorm(1, width) for _ in range(2))
        self.pool = nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False)
        wide = _RATIO * width
        self.perceptron = nn.Sequential(
            nn.Conv2d(width, wide, 1), nn.GELU(), nn.Conv2d(wide, width, 1)
        )
        self.scales = nn.Parameter(torch.full((2, width, 1, 1), 1e-5))
        self.drop_path = need("timm.layers").DropPath(drop)

    def forward(self, features: Tensor) -> Tensor:
        normal = self.norms[0](features)
        mixed = self.scales[0] * (self.pool(normal) - normal)
        features = features + self.drop_path(mixed)
        found = self.scales[1] * self.perceptron(self.norms[1](features))
        return features + cast(Tensor, self.drop_path(found))


class _OnTokens(nn.Module):
    """Applies a block of tokens (count, positions, width) to images."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, features: Tensor) -> Tensor:
        tokens = self.block(features.flatten(2).transpose(1, 2))
        return cast(Tensor, tokens.transpose(1, 2).reshape(features.shape))


class _ChannelsLast(nn.Module):
    """Applies a block of images whose channels come last."""

    def __init__(self, block: Any) -> None:
        super().__init__()
        self.block = block

    def forward(self, features: Tensor) -> Tensor:
        found = self.block(features.permute(0, 2, 3, 1))
        return cast(Tensor, found.permute(0, 3, 1, 2))


METAFORMERS: dict[str, tuple[str, Block]] = {
    "vit": ("ViT", _vit),
    "swin": ("Swin", _swin),
    "mlp-mixer": ("MLP-Mixer", _mixer),
    "convmixer": ("ConvMixer", _ConvMixer),
    "poolformer": ("PoolFormer", _PoolFormer),
    "convnext": ("ConvNeXt", _convnext),
    "moganet": ("MogaNet", _moganet),
}
"""Titles and blocks, by name."""
