"""Backbones of detectors: features of several strides, made equally wide by an FPN.

| name | scale paper | scale small |
| --- | --- | --- |
| ``resnet50`` | torchvision's ResNet-50 | convolutions of 32 to 96 channels |
| ``swin-t`` | timm's Swin-T | a Swin of width 24 |

An FPN (feature pyramid network, Lin et al., 2017) adds each coarser map, enlarged, to
the next finer one.
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
"""Ends of names that files need not have."""


class FeaturePyramid(nn.Module):
    """A body that gives features by level, and an FPN on top of it.

    Args:
        body: Returns a list of features (N, C, H, W), from fine to coarse.
        channels: Of each of them.
        width: Channels of every level in the end.
        extra: Makes further, coarser levels, such as ``LastLevelMaxPool``.
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
        """Return features by the name of the level."""
        levels = OrderedDict((str(i), x) for i, x in enumerate(self.body(images)))
        features: dict[str, Tensor] = self.fpn(levels)
        return features


class _SmallBody(nn.Module):
    """Convolutions with group normalisation; features of strides 4, 8 and 16."""

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
    """A Swin transformer of timm, whose features have the channels last.

    Args:
        small: Whether it is a narrow one with small windows, for small images.
        indices: Which of its four stages give features; their strides are 4 to 32.
    """

    def __init__(self, *, small: bool, indices: Sequence[int]) -> None:
        super().__init__()
        size = {"embed_dim": 24, "depths": (1, 1, 2, 1), "num_heads": (1, 2, 4, 8)}
        shape = {**size, "window_size": 4, "img_size": 64} if small else {}
        self.swin = need("timm").create_model(
            "swin_tiny_patch4_window7_224",
            features_only=True,
            out_indices=tuple(indices),
            # Images of any size: masks of shifted windows are made when needed.
            strict_img_size=False,
            dynamic_mask=True,
            always_partition=True,
            drop_path_rate=0.0 if small else 0.2,
            **shape,
        )
        self.channels = tuple(self.swin.feature_info.channels())
        # As in Swin's own detectors: its blocks end without a normalisation.
        self.norms = nn.ModuleList(nn.LayerNorm(width) for width in self.channels)
        if small:
            # The usual deviation of 0.02 is made for wide networks.
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
    """Make a backbone of the paper, with an FPN of width 256.

    RetinaNet uses strides 8 to 32 and two coarser levels of its own; the others use
    strides 4 to 32 and one coarser level for proposals.

    Args:
        name: One of ``BACKBONES``.
        pretrained: Whether pre-trained weights will be loaded. If so, the stem and the
            first stage of ResNet-50 stay as they are, and so does its batch
            normalisation, except RetinaNet's; from scratch everything is trained.
        retinanet: Whether it is for RetinaNet.
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


def pretrained_weights(model: nn.Module, path: str) -> dict[str, Tensor]:
    """Read the weights of a detector's backbone from the file of a classifier.

    Args:
        model: A detector on one of the paper's backbones.
        path: State dict of torchvision's ResNet-50 or timm's Swin-T, as safetensors or
            as torch saves it.

    Returns:
        Entries of the detector's state dict.
    """
    given = _read_weights(path)
    found, missing = {}, []
    for key, own in model.state_dict().items():
        if not key.startswith("backbone.body.") or ".norms." in key:
            continue
        name = key.removeprefix("backbone.body.").removeprefix("swin.")
        # timm names the stages otherwise where it gives features.
        value = given.get(name, given.get(name.replace("layers_", "layers.", 1)))
        if value is not None and value.shape == own.shape:
            found[key] = value
        elif not key.endswith(_MADE_ANEW):
            missing.append(name)
    if missing or not found:
        such = f", such as {missing[0]}" if missing else ""
        raise UsageError(
            f"weights: {path} does not fit the backbone; {len(missing)} of its tensors "
            f"are missing or have another shape{such}."
        )
    return found


def _read_weights(path: str) -> dict[str, Tensor]:
    """Read a state dict: safetensors, or a file of torch that holds nothing else."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise UsageError(f"weights: there is no file {path}.")
    try:
        if file.suffix == ".safetensors":
            return dict(need("safetensors.torch").load_file(file))
        content = torch.load(file, map_location="cpu", weights_only=True)
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
