"""Small networks that several tasks use."""

from torch import nn

from switch_ema.bench.models.mlp import mlp
from switch_ema.bench.models.networks import NETWORKS, create_network
from switch_ema.bench.models.resnet import resnet18
from switch_ema.bench.models.small_cnn import small_cnn
from switch_ema.bench.models.stacked import Stacked

IMAGE_NETWORKS = ("small-cnn", "resnet18", "mlp")


def image_network(name: str, channels: int, side: int, outputs: int) -> nn.Module:
    """Make a network for square images by its name."""
    if name == "small-cnn":
        return small_cnn(channels, side, outputs)
    if name == "resnet18":
        return resnet18(channels, outputs)
    if name == "mlp":
        return nn.Sequential(nn.Flatten(), mlp(channels * side**2, 128, 128, outputs))
    raise ValueError(
        f"network must be one of {', '.join(IMAGE_NETWORKS)}, got {name!r}."
    )


__all__ = [
    "IMAGE_NETWORKS",
    "NETWORKS",
    "Stacked",
    "create_network",
    "image_network",
    "mlp",
    "resnet18",
    "small_cnn",
]
