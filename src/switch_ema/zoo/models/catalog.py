"""The classification networks of the paper's Tables 2 and 3, one row each.

A row has the builders of the paper's size and the small version; to add a network, add
a row.
"""

from dataclasses import dataclass

from torch import nn

from switch_ema._checks import check_choice
from switch_ema.zoo.models.builders import (
    convolutional,
    moganet,
    patched,
    small_convnext,
    small_deit,
    small_densenet,
    small_mixer,
    small_moganet,
    small_resnet,
    small_swin,
    small_vgg,
    small_wide_resnet,
    vgg13,
    wide_resnet,
)
from switch_ema.zoo.models.cifar_stems import (
    convnext_for_cifar,
    densenet_for_cifar,
    resnet_for_cifar,
)
from switch_ema.zoo.models.shape import Builder, NetworkShape

SCALES = ("paper", "small")


@dataclass(frozen=True, kw_only=True)
class Published:
    """Published parameter count, and the network it was counted for."""

    millions: float
    """Parameters in millions."""
    classes: int = 1000
    """Outputs; 0 if the classifier is not counted."""
    image_size: int = 224
    """Height and width of the images."""
    source: str
    """Source of the count."""


@dataclass(frozen=True, kw_only=True)
class NetworkInfo:
    """One network: its names and builders."""

    name: str
    """Name in this library."""
    title: str
    """Name in the paper."""
    family: str
    """``classical cnn``, ``transformer``, ``mlp`` or ``modern cnn``."""
    make: Builder
    """Makes the paper's network."""
    make_small: Builder
    """Makes the small version."""
    published: Published
    """Its published size."""
    stems: tuple[str, ...] = ("imagenet", "cifar")
    """Stems at the paper's size, the one for small images last."""
    residual: bool = True
    """Whether it has residual blocks, for stochastic depth."""
    cifar_size: int = 32
    """Size that CIFAR images are resized to."""


_TORCHVISION = "torchvision's table of models"

_CLASSICAL = (
    NetworkInfo(
        name="vgg13-bn",
        title="VGG-13 (BN)",
        family="classical cnn",
        make=vgg13,
        make_small=small_vgg,
        published=Published(millions=133.05, source=_TORCHVISION),
        residual=False,
    ),
    NetworkInfo(
        name="resnet18",
        title="R-18",
        family="classical cnn",
        make=convolutional("resnet18", resnet_for_cifar),
        make_small=small_resnet((1, 1, 1, 1), bottleneck=False),
        published=Published(millions=11.69, source=_TORCHVISION),
    ),
    NetworkInfo(
        name="resnet50",
        title="R-50",
        family="classical cnn",
        make=convolutional("resnet50", resnet_for_cifar),
        make_small=small_resnet((1, 1, 1, 1)),
        published=Published(millions=25.56, source=_TORCHVISION),
    ),
    NetworkInfo(
        name="resnet101",
        title="R-101",
        family="classical cnn",
        make=convolutional("resnet101", resnet_for_cifar),
        make_small=small_resnet((1, 1, 3, 1)),
        published=Published(millions=44.55, source=_TORCHVISION),
    ),
    NetworkInfo(
        name="resnext50-32x4d",
        title="RX-50",
        family="classical cnn",
        make=convolutional("resnext50_32x4d", resnet_for_cifar),
        make_small=small_resnet((1, 1, 1, 1), cardinality=4),
        published=Published(millions=25.03, source=_TORCHVISION),
    ),
    NetworkInfo(
        name="wrn28-10",
        title="WRN-28-10",
        family="classical cnn",
        make=wide_resnet(10),
        make_small=small_wide_resnet,
        published=Published(
            millions=36.5,
            classes=100,
            image_size=32,
            source="Zagoruyko & Komodakis, 2016",
        ),
        stems=("cifar",),
    ),
    # That of Figure 2 alone.
    NetworkInfo(
        name="wrn28-8",
        title="WRN-28-8",
        family="classical cnn",
        make=wide_resnet(8),
        make_small=small_wide_resnet,
        published=Published(
            millions=23.4,
            classes=100,
            image_size=32,
            source="Zagoruyko & Komodakis, 2016",
        ),
        stems=("cifar",),
    ),
    NetworkInfo(
        name="densenet121",
        title="DenseNet-121",
        family="classical cnn",
        make=convolutional("densenet121", densenet_for_cifar, residual=False),
        make_small=small_densenet,
        published=Published(millions=7.98, source=_TORCHVISION),
        residual=False,
    ),
)

_PATCHED = (
    NetworkInfo(
        name="deit-t",
        title="DeiT-T",
        family="transformer",
        make=patched("deit_tiny_patch16_224", 16),
        make_small=small_deit(32),
        published=Published(millions=5.7, source="Li et al., 2024"),
        stems=("imagenet",),
        cifar_size=224,
    ),
    NetworkInfo(
        name="deit-s",
        title="DeiT-S",
        family="transformer",
        make=patched("deit_small_patch16_224", 16),
        make_small=small_deit(48),
        published=Published(millions=22, source="Touvron et al., 2021"),
        stems=("imagenet",),
        cifar_size=224,
    ),
    NetworkInfo(
        name="deit-b",
        title="DeiT-B",
        family="transformer",
        make=patched("deit_base_patch16_224", 16),
        make_small=small_deit(64),
        published=Published(millions=86, source="Touvron et al., 2021"),
        stems=("imagenet",),
        cifar_size=224,
    ),
    # The paper says T; its released configurations use S/16.
    NetworkInfo(
        name="mlp-mixer",
        title="MLPMixer-T",
        family="mlp",
        make=patched("mixer_s16_224", 16),
        make_small=small_mixer,
        published=Published(millions=18, classes=0, source="Tolstikhin et al., 2021"),
        stems=("imagenet",),
        cifar_size=224,
    ),
    NetworkInfo(
        name="swin-t",
        title="Swin-T",
        family="transformer",
        make=patched("swin_tiny_patch4_window7_224", 4),
        make_small=small_swin((2, 2)),
        published=Published(millions=28.29, source=_TORCHVISION),
        stems=("imagenet",),
        cifar_size=224,
    ),
    NetworkInfo(
        name="swin-s",
        title="Swin-S",
        family="transformer",
        make=patched("swin_small_patch4_window7_224", 4),
        make_small=small_swin((2, 4)),
        published=Published(millions=49.61, source=_TORCHVISION),
        stems=("imagenet",),
        cifar_size=224,
    ),
)

_MODERN = (
    NetworkInfo(
        name="convnext-t",
        title="ConvNeXt-T",
        family="modern cnn",
        make=convolutional("convnext_tiny", convnext_for_cifar),
        make_small=small_convnext((1, 1, 2, 1)),
        published=Published(millions=28.59, source=_TORCHVISION),
    ),
    NetworkInfo(
        name="convnext-s",
        title="ConvNeXt-S",
        family="modern cnn",
        make=convolutional("convnext_small", convnext_for_cifar),
        make_small=small_convnext((1, 1, 4, 1)),
        published=Published(millions=50.22, source=_TORCHVISION),
    ),
    NetworkInfo(
        name="moganet-s",
        title="MogaNet-S",
        family="modern cnn",
        make=moganet((64, 128, 320, 512), (2, 3, 12, 2)),
        make_small=small_moganet((1, 1, 1, 1)),
        published=Published(millions=25.3, source="Li et al., 2024"),
    ),
    NetworkInfo(
        name="moganet-b",
        title="MogaNet-B",
        family="modern cnn",
        make=moganet((64, 160, 320, 512), (4, 6, 22, 3)),
        make_small=small_moganet((1, 1, 2, 1)),
        published=Published(millions=43.8, source="Li et al., 2024"),
    ),
)

NETWORKS: dict[str, NetworkInfo] = {
    info.name: info for info in (*_CLASSICAL, *_PATCHED, *_MODERN)
}
"""The networks of Tables 2 and 3 by name."""


def create_network(
    name: str,
    *,
    num_classes: int,
    image_size: int,
    scale: str = "paper",
    in_channels: int = 3,
    drop_path: float = 0.0,
    stem: str | None = None,
    resizes: bool = False,
    usual_weights: bool = False,
) -> nn.Module:
    """Make a classification network with new weights.

    Args:
        name: A key of ``NETWORKS``.
        num_classes: Outputs.
        image_size: Height and width of the images. DeiT, MLP-Mixer and Swin accept
            only this size, unless ``resizes``.
        scale: ``paper`` for the paper's size, ``small`` for the version that trains on
            a CPU.
        in_channels: Channels of the images.
        drop_path: Stochastic depth in [0, 1), for networks with residual blocks.
        stem: ``imagenet`` or ``cifar``, at the paper's scale. Default: the CIFAR stem,
            if the network has one, for images up to 64 pixels. Small networks have
            only one stem.
        resizes: Whether a DeiT at the paper's scale resamples its positions to images
            of another size.
        usual_weights: Whether to initialise a small transformer like a wide one instead
            of scaling its weights to its width.

    >>> network = create_network("wrn28-10", scale="small", num_classes=9, image_size=8)
    >>> network.head.out_features
    9
    """
    if name not in NETWORKS:
        known = ", ".join(NETWORKS)
        raise ValueError(f"network must be one of {known}, got {name!r}.")
    info = NETWORKS[name]
    check_choice("scale", scale, SCALES)
    shape = NetworkShape(
        num_classes=num_classes,
        image_size=image_size,
        in_channels=in_channels,
        drop_path=drop_path,
        stem=_choose_stem(info, scale, image_size, stem),
        resizes=resizes,
        usual_weights=usual_weights,
    )
    if drop_path and not info.residual:
        raise ValueError(
            f"drop_path must be 0 for {name}, which has no residual blocks, "
            f"got {drop_path}."
        )
    return info.make(shape) if scale == "paper" else info.make_small(shape)


def _choose_stem(
    info: NetworkInfo, scale: str, image_size: int, stem: str | None
) -> str:
    # CIFAR stems are made for small images.
    stems = info.stems if scale == "paper" else info.stems[-1:]
    if stem in stems:
        return stem
    if stem is not None:
        raise ValueError(
            f"stem must be {' or '.join(stems)} for {info.name} at scale {scale!r}, "
            f"got {stem!r}."
        )
    return stems[-1] if image_size <= 64 else stems[0]
