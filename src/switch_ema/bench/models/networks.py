"""The classification networks of the paper, each with a small sibling for a CPU."""

from torch import nn

from switch_ema._checks import check_choice
from switch_ema.bench.models.network_catalog import NETWORKS
from switch_ema.bench.models.network_info import NetworkInfo
from switch_ema.bench.models.network_shape import NetworkShape

SCALES = ("paper", "small")


def create_network(
    name: str,
    *,
    num_classes: int,
    image_size: int,
    scale: str = "paper",
    in_channels: int = 3,
    drop_path: float = 0.0,
    stem: str | None = None,
    usual_weights: bool = False,
) -> nn.Module:
    """Make a classification network with new weights.

    Args:
        name: A key of ``NETWORKS``.
        num_classes: Outputs.
        image_size: Height and width of the images. DeiT, MLP-Mixer and Swin fit this
            size only.
        scale: ``paper`` for the size of the paper, ``small`` for the sibling that
            trains on a CPU.
        in_channels: Channels of the images.
        drop_path: Stochastic depth in [0, 1), for networks with residual blocks.
        stem: ``imagenet`` or ``cifar``, at the scale of the paper. By default the
            CIFAR stem for images up to 64 pixels where the network has one. Small
            siblings have one stem only.
        usual_weights: Whether weights of a small transformer are drawn as if it were
            wide, and not to suit its width.

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
    # Small images are what CIFAR stems are for.
    stems = info.stems if scale == "paper" else info.stems[-1:]
    if stem in stems:
        return stem
    if stem is not None:
        raise ValueError(
            f"stem must be {' or '.join(stems)} for {info.name} at scale {scale!r}, "
            f"got {stem!r}."
        )
    return stems[-1] if image_size <= 64 else stems[0]


__all__ = ["NETWORKS", "SCALES", "NetworkInfo", "create_network"]
