"""The classification networks of the paper's Tables 2 and 3, as rows."""

from switch_ema.bench.models.cifar_stems import (
    convnext_for_cifar,
    densenet_for_cifar,
    resnet_for_cifar,
)
from switch_ema.bench.models.network_info import NetworkInfo, Published
from switch_ema.bench.models.paper_networks import (
    convolutional,
    moganet,
    patched,
    vgg13,
    wide_resnet,
)
from switch_ema.bench.models.small_networks import (
    small_convnext,
    small_deit,
    small_densenet,
    small_mixer,
    small_moganet,
    small_resnet,
    small_swin,
    small_vgg,
    small_wide_resnet,
)

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
        make=wide_resnet,
        make_small=small_wide_resnet,
        published=Published(
            millions=36.5,
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
    # The paper writes T; its released configurations have S/16.
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
