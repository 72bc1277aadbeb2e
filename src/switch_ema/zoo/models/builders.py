"""Builders of the classification networks, at the paper's size and small.

The small networks have the same classes, but are narrow and shallow enough to train on
a CPU. They take images of 8 by 8 pixels or more. They use the network's CIFAR stem if
it has one, with a stride of 2 where the image is large enough, since most time would
otherwise go to the full resolution. Where the paper has several sizes of a network, the
small versions differ in the same way: in width for DeiT, in depth for ResNet, Swin,
ConvNeXt and MogaNet.

Builders import timm, and networks that use its layers, only when called, so listing the
networks stays cheap.
"""

from collections.abc import Callable
from typing import Any, Literal

from torch import nn

from switch_ema._checks import check_count
from switch_ema.zoo.models.cifar_stems import (
    convnext_for_cifar,
    densenet_for_cifar,
    resnet_for_cifar,
    vgg_for_cifar,
)
from switch_ema.zoo.models.shape import Builder, NetworkShape


def convolutional(
    name: str,
    to_cifar: Callable[[Any], None],
    *,
    residual: bool = True,
) -> Builder:
    """Return a builder of a timm network for images of any size.

    Args:
        name: The network's name in timm.
        to_cifar: Replaces its ImageNet stem by a CIFAR stem, in place.
        residual: Whether it has residual blocks, for stochastic depth.
    """

    def build(shape: NetworkShape) -> nn.Module:
        _check_size(shape)
        drop = {"drop_path_rate": shape.drop_path} if residual else {}
        model = _create(name, shape, **drop)
        if shape.stem == "cifar":
            to_cifar(model)
        return model

    return build


def vgg13(shape: NetworkShape) -> nn.Module:
    """Make VGG-13 with batch normalisation."""
    check_count("image_size", shape.image_size, 32)
    if shape.stem == "imagenet":
        return _create("vgg13_bn", shape)
    # Full-size hidden layers would take 500 MB before being discarded.
    model = _create("vgg13_bn", shape, mlp_ratio=1 / 4096)
    vgg_for_cifar(model)
    return model


def patched(name: str, patch: int) -> Builder:
    """Return a builder of a timm network that cuts images into patches."""

    def build(shape: NetworkShape) -> nn.Module:
        if shape.image_size % patch:
            raise ValueError(
                f"image_size must be a multiple of the patch's {patch} for {name}, "
                f"got {shape.image_size}."
            )
        more = {"dynamic_img_size": True} if shape.resizes else {}
        return _create(
            name,
            shape,
            img_size=shape.image_size,
            drop_path_rate=shape.drop_path,
            **more,
        )

    return build


def wide_resnet(width: int) -> Builder:
    """Return a builder of WRN-28-10, or another width."""

    def build(shape: NetworkShape) -> nn.Module:
        from switch_ema.zoo.models.wide_resnet import WideResNet

        _check_size(shape)
        return WideResNet(
            28,
            width,
            shape.num_classes,
            in_channels=shape.in_channels,
            drop_path=shape.drop_path,
        )

    return build


def moganet(widths: tuple[int, ...], depths: tuple[int, ...]) -> Builder:
    """Return a builder of MogaNets with the published expansions 8, 8, 4, 4."""

    def build(shape: NetworkShape) -> nn.Module:
        from switch_ema.zoo.models.moganet import MogaNet

        _check_size(shape)
        return MogaNet(
            widths,
            depths,
            (8, 8, 4, 4),
            shape.num_classes,
            in_channels=shape.in_channels,
            drop_path=shape.drop_path,
            stem_stride=1 if shape.stem == "cifar" else 2,
        )

    return build


def small_vgg(shape: NetworkShape) -> nn.Module:
    """Make a VGG with four convolutions that halves the image three times."""
    from timm.models.vgg import VGG

    check_count("image_size", shape.image_size, 8)
    # Full-size hidden layers would take 100 MB before being discarded.
    model = VGG(
        [16, "M", 24, "M", 48, 48, "M"],
        num_classes=shape.num_classes,
        in_chans=shape.in_channels,
        norm_layer=nn.BatchNorm2d,
        mlp_ratio=1 / 4096,
    )
    vgg_for_cifar(model)
    return model


def small_resnet(
    depths: tuple[int, ...], *, bottleneck: bool = True, cardinality: int = 1
) -> Builder:
    """Return a builder of ResNets, or ResNeXts if the cardinality is above 1."""

    def build(shape: NetworkShape) -> nn.Module:
        from timm.models.resnet import BasicBlock, Bottleneck, ResNet

        # timm's annotation says block instance where it needs the class.
        block: Any = Bottleneck if bottleneck else BasicBlock
        model = ResNet(
            block,
            depths,
            num_classes=shape.num_classes,
            in_chans=shape.in_channels,
            channels=(8, 8, 16, 16) if bottleneck else (8, 16, 32, 64),
            cardinality=cardinality,
            # Grouped convolutions are twice as wide, as in 32x4d.
            base_width=64 if cardinality == 1 else 128 // cardinality,
            # In timm only deep stems have a width; the next line makes it shallow.
            stem_type="deep",
            stem_width=4,
            drop_path_rate=shape.drop_path,
        )
        resnet_for_cifar(model, stride=_stride(shape))
        return model

    return build


def small_wide_resnet(shape: NetworkShape) -> nn.Module:
    """Make a WRN-10-1."""
    from switch_ema.zoo.models.wide_resnet import WideResNet

    return WideResNet(
        10,
        1,
        shape.num_classes,
        in_channels=shape.in_channels,
        drop_path=shape.drop_path,
        stem_stride=_stride(shape),
    )


def small_densenet(shape: NetworkShape) -> nn.Module:
    """Make a DenseNet with 8 layers and growth rate 8."""
    from timm.models.densenet import DenseNet

    model = DenseNet(
        growth_rate=8,
        block_config=(1, 2, 3, 2),
        num_classes=shape.num_classes,
        in_chans=shape.in_channels,
    )
    densenet_for_cifar(model, stride=_stride(shape))
    return model


def small_deit(width: int) -> Builder:
    """Return a builder of vision transformers with heads of 16 channels."""

    def build(shape: NetworkShape) -> nn.Module:
        from timm.models.vision_transformer import VisionTransformer

        return VisionTransformer(
            img_size=shape.image_size,
            patch_size=small_deit_patch(shape),
            in_chans=shape.in_channels,
            num_classes=shape.num_classes,
            embed_dim=width,
            depth=2,
            num_heads=width // 16,
            drop_path_rate=shape.drop_path,
            weight_init=_weights(shape),
        )

    return build


def small_mixer(shape: NetworkShape) -> nn.Module:
    """Make an MLP-Mixer with two blocks."""
    from timm.models.mlp_mixer import MlpMixer

    return MlpMixer(
        num_classes=shape.num_classes,
        img_size=shape.image_size,
        in_chans=shape.in_channels,
        patch_size=_patch(shape),
        num_blocks=2,
        embed_dim=64,
        drop_path_rate=shape.drop_path,
    )


def small_swin(depths: tuple[int, int]) -> Builder:
    """Return a builder of two-stage Swin transformers with 4 by 4 windows."""

    def build(shape: NetworkShape) -> nn.Module:
        from timm.models.swin_transformer import SwinTransformer

        return SwinTransformer(
            img_size=shape.image_size,
            patch_size=_patch(shape),
            in_chans=shape.in_channels,
            num_classes=shape.num_classes,
            embed_dim=24,
            depths=depths,
            num_heads=(2, 4),
            window_size=4,
            drop_path_rate=shape.drop_path,
            weight_init=_weights(shape),
        )

    return build


def small_convnext(depths: tuple[int, ...]) -> Builder:
    """Return a builder of ConvNeXts."""

    def build(shape: NetworkShape) -> nn.Module:
        from timm.models.convnext import ConvNeXt

        model = ConvNeXt(
            in_chans=shape.in_channels,
            num_classes=shape.num_classes,
            depths=depths,
            dims=(8, 16, 32, 64),
            drop_path_rate=shape.drop_path,
        )
        convnext_for_cifar(model, stride=_stride(shape))
        return model

    return build


def small_moganet(depths: tuple[int, ...]) -> Builder:
    """Return a builder of MogaNets."""

    def build(shape: NetworkShape) -> nn.Module:
        from switch_ema.zoo.models.moganet import MogaNet

        return MogaNet(
            (8, 16, 32, 48),
            depths,
            (2, 2, 2, 2),
            shape.num_classes,
            in_channels=shape.in_channels,
            drop_path=shape.drop_path,
            stem_stride=_stride(shape),
        )

    return build


def _check_size(shape: NetworkShape) -> None:
    """Refuse images that three halvings after the stem would shrink below a pixel."""
    check_count("image_size", shape.image_size, 8 if shape.stem == "cifar" else 32)


def _create(name: str, shape: NetworkShape, **arguments: Any) -> nn.Module:
    import timm

    return timm.create_model(
        name, num_classes=shape.num_classes, in_chans=shape.in_channels, **arguments
    )


def _stride(shape: NetworkShape) -> int:
    """Return stride 2 if the three stages after the stem still leave a pixel."""
    check_count("image_size", shape.image_size, 8)
    return 2 if shape.image_size >= 16 else 1


def _weights(shape: NetworkShape) -> Literal["", "moco"]:
    """Return timm's name of the initialisation of a transformer's weights.

    The usual standard deviation of 0.02 suits widths of 384 and more. In a narrow
    network it makes every layer's output tiny, and a thousand steps learn little;
    "moco" is Xavier's initialisation, which scales with the width.
    """
    return "" if shape.usual_weights else "moco"


def small_deit_patch(shape: NetworkShape) -> int:
    """Return the side of a patch of a small DeiT."""
    # Most 16-pixel images are enlarged from 8: more patches cost time and add no
    # information.
    return _patch(shape, 4 if 16 <= shape.image_size < 28 else 7)


def _patch(shape: NetworkShape, least: int = 7) -> int:
    """Return the largest patch that leaves at least ``least`` patches per side."""
    check_count("image_size", shape.image_size, 8)
    largest = shape.image_size // least
    return next(p for p in range(largest, 0, -1) if shape.image_size % p == 0)
