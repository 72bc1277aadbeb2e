"""Builders of the networks at the size of their publications."""

from collections.abc import Callable
from typing import Any

from torch import nn

from switch_ema._checks import check_count
from switch_ema.bench.models.cifar_stems import vgg_for_cifar
from switch_ema.bench.models.moganet import MogaNet
from switch_ema.bench.models.network_shape import Builder, NetworkShape
from switch_ema.bench.models.wide_resnet import WideResNet


def convolutional(
    name: str,
    to_cifar: Callable[[Any], None],
    *,
    residual: bool = True,
) -> Builder:
    """Return a builder of a network of timm that takes images of any size.

    Args:
        name: The network's name in timm.
        to_cifar: What turns its ImageNet stem into the one for CIFAR, in place.
        residual: Whether it has blocks that can be dropped.
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
    # Hidden layers of full size would take 500 MB before they are thrown away.
    model = _create("vgg13_bn", shape, mlp_ratio=1 / 4096)
    vgg_for_cifar(model)
    return model


def patched(name: str, patch: int) -> Builder:
    """Return a builder of a network of timm that cuts images into patches."""

    def build(shape: NetworkShape) -> nn.Module:
        if shape.image_size % patch:
            raise ValueError(
                f"image_size must be a multiple of the patch's {patch} for {name}, "
                f"got {shape.image_size}."
            )
        return _create(
            name, shape, img_size=shape.image_size, drop_path_rate=shape.drop_path
        )

    return build


def wide_resnet(shape: NetworkShape) -> nn.Module:
    """Make WRN-28-10."""
    _check_size(shape)
    return WideResNet(
        28,
        10,
        shape.num_classes,
        in_channels=shape.in_channels,
        drop_path=shape.drop_path,
    )


def moganet(widths: tuple[int, ...], depths: tuple[int, ...]) -> Builder:
    """Return a builder of MogaNets with the publication's expansions 8, 8, 4, 4."""

    def build(shape: NetworkShape) -> nn.Module:
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


def _check_size(shape: NetworkShape) -> None:
    """Leave at least a pixel: the stages halve the image three times after the stem."""
    check_count("image_size", shape.image_size, 8 if shape.stem == "cifar" else 32)


def _create(name: str, shape: NetworkShape, **arguments: Any) -> nn.Module:
    import timm

    return timm.create_model(
        name, num_classes=shape.num_classes, in_chans=shape.in_channels, **arguments
    )
