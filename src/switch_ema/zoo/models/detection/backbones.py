"""Detector backbones: features of several strides, with an FPN.

| name | scale paper | scale small |
| --- | --- | --- |
| ``resnet50`` | torchvision's ResNet-50 | convolutions of 32 to 96 channels |
| ``swin-t`` | timm's Swin-T | a Swin of width 24 |

An FPN (feature pyramid network, Lin et al., 2017) brings all maps to one width and adds
each coarser map, upsampled, to the next finer one.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from switch_ema._checks import check_choice
from switch_ema.bench.errors import UsageError
from switch_ema.zoo.data.sources import need

BACKBONES = ("resnet50", "swin-t")
SMALL_WIDTH, PAPER_WIDTH = 32, 256
_MADE_ANEW = ("num_batches_tracked", "relative_position_index", "attn_mask")
"""Suffixes of tensor names that files may lack."""


class FeaturePyramid(nn.Module):
    """A multi-level feature extractor with an FPN on top.

    Args:
        body: Returns a list of features (N, C, H, W), from fine to coarse.
        channels: Channels of each of them.
        width: Output channels of every level.
        extra: Adds coarser levels, such as ``LastLevelMaxPool``.
    """

    def __init__(
        self, body: nn.Module, channels: Sequence[int], width: int, extra: Any = None
    ) -> None:
        super().__init__()
        ops = need("torchvision.ops")
        self.body = body
        self.fpn = ops.FeaturePyramidNetwork(list(channels), width, extra)
        self.out_channels = width

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Return the features by level name."""
        levels = OrderedDict((str(i), x) for i, x in enumerate(self.body(images)))
        features: dict[str, Tensor] = self.fpn(levels)
        return features


class _SmallBody(nn.Module):
    """Convolutions with group normalisation; strides 4, 8 and 16."""

    channels = (32, 64, 96)

    def __init__(self) -> None:
        super().__init__()
        one, two, three = self.channels
        self.stem = nn.Sequential(_convolution(3, 16, 2), _convolution(16, one, 2))
        self.stages = nn.ModuleList(
            [
                nn.Sequential(_convolution(one, one), _convolution(one, one)),
                nn.Sequential(_convolution(one, two, 2), _convolution(two, two)),
                nn.Sequential(_convolution(two, three, 2), _convolution(three, three)),
            ]
        )

    def forward(self, images: Tensor) -> list[Tensor]:
        """Return the features, from fine to coarse."""
        x, features = self.stem(images), []
        for stage in self.stages:
            x = stage(x)
            features.append(x)
        return features


class _SwinBody(nn.Module):
    """A timm Swin transformer; timm's features have the channels last.

    Args:
        small: Whether to make a narrow one with small windows, for small images.
        indices: Stages (of four, strides 4 to 32) whose features are used.
    """

    def __init__(self, *, small: bool, indices: Sequence[int]) -> None:
        super().__init__()
        size = {"embed_dim": 24, "depths": (1, 1, 2, 1), "num_heads": (1, 2, 4, 8)}
        shape = {**size, "window_size": 4, "img_size": 64} if small else {}
        self.swin = need("timm").create_model(
            "swin_tiny_patch4_window7_224",
            features_only=True,
            out_indices=tuple(indices),
            # For images of any size, masks of shifted windows are computed on demand.
            strict_img_size=False,
            dynamic_mask=True,
            always_partition=True,
            drop_path_rate=0.0 if small else 0.2,
            **shape,
        )
        self.channels = tuple(self.swin.feature_info.channels())
        # As in Swin's own detectors: its blocks do not end with a normalisation.
        self.norms = nn.ModuleList(nn.LayerNorm(width) for width in self.channels)
        if small:
            # The usual standard deviation of 0.02 suits wide networks only.
            for module in self.swin.modules():
                if isinstance(module, nn.Linear):
                    nn.init.xavier_uniform_(module.weight)

    def forward(self, images: Tensor) -> list[Tensor]:
        """Return the features, from fine to coarse."""
        features = zip(self.norms, self.swin(images), strict=True)
        return [norm(x).permute(0, 3, 1, 2).contiguous() for norm, x in features]


def small_backbone(name: str) -> FeaturePyramid:
    """Make the small version of a backbone: strides from 4, an FPN of width 32."""
    check_choice("backbone", name, BACKBONES)
    swin = _SwinBody(small=True, indices=range(3)) if name == "swin-t" else None
    body = swin or _SmallBody()
    return FeaturePyramid(body, body.channels, SMALL_WIDTH)


def paper_backbone(
    name: str, *, pretrained: bool = False, retinanet: bool = False
) -> nn.Module:
    """Make one of the paper's backbones, with an FPN of width 256.

    RetinaNet uses strides 8 to 32 and adds two coarser levels; the others use strides 4
    to 32 and one coarser level for proposals.

    Args:
        name: One of ``BACKBONES``.
        pretrained: Whether pre-trained weights will be loaded. If so, ResNet-50's stem
            and first stage are frozen, and so is its batch normalisation except for
            RetinaNet; from scratch everything is trained.
        retinanet: Whether the detector is RetinaNet.
    """
    check_choice("backbone", name, BACKBONES)
    pyramid = need("torchvision.ops.feature_pyramid_network")
    stages = (1, 2, 3) if retinanet else (0, 1, 2, 3)
    if name == "swin-t":
        body = _SwinBody(small=False, indices=stages)
        extra = (
            pyramid.LastLevelP6P7(PAPER_WIDTH, PAPER_WIDTH)
            if retinanet
            else pyramid.LastLevelMaxPool()
        )
        return FeaturePyramid(body, body.channels, PAPER_WIDTH, extra)
    frozen = need("torchvision.ops.misc").FrozenBatchNorm2d
    norm = frozen if pretrained and not retinanet else nn.BatchNorm2d
    utils = need("torchvision.models.detection.backbone_utils")
    made: nn.Module = utils._resnet_fpn_extractor(
        need("torchvision.models").resnet50(weights=None, norm_layer=norm),
        3 if pretrained else 5,
        returned_layers=[stage + 1 for stage in stages],
        extra_blocks=pyramid.LastLevelP6P7(2048, PAPER_WIDTH) if retinanet else None,
    )
    return made


def pretrained_weights(model: nn.Module, path: Path) -> dict[str, Tensor]:
    """Read a detector's backbone weights from a classifier's file.

    Args:
        model: A detector on one of the paper's backbones.
        path: State dict of torchvision's ResNet-50 or timm's Swin-T, as safetensors or
            saved by torch.

    Returns:
        Entries of the detector's state dict.
    """
    given = _read_weights(path)
    found, missing = {}, []
    for key, own in model.state_dict().items():
        if not key.startswith("backbone.body.") or ".norms." in key:
            continue
        name = key.removeprefix("backbone.body.").removeprefix("swin.")
        # timm's feature extractors name the stages differently.
        value = given.get(name, given.get(name.replace("layers_", "layers.", 1)))
        if value is not None and value.shape == own.shape:
            found[key] = value
        elif not key.endswith(_MADE_ANEW):
            missing.append(name)
    if missing or not found:
        such = f", such as {missing[0]}" if missing else ""
        raise UsageError(
            f"weights: {path} does not fit the backbone: {len(missing)} of its tensors "
            f"are missing or have another shape{such}."
        )
    return found


def _read_weights(path: Path) -> dict[str, Tensor]:
    """Read a state dict: safetensors, or a torch file with nothing else."""
    try:
        if path.suffix == ".safetensors":
            return dict(need("safetensors.torch").load_file(path))
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise UsageError(f"weights: {path} cannot be read: {reason}") from None
    for key in ("state_dict", "model"):
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    return dict(content)


def _convolution(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
        nn.GroupNorm(8, outputs),
        nn.ReLU(inplace=True),
    )
