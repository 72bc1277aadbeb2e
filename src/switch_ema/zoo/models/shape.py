"""Inputs, outputs and stochastic depth that an image network is built for."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from switch_ema._checks import check_count, check_range


@dataclass(frozen=True, kw_only=True)
class NetworkShape:
    """The images, the classes and the stochastic depth of a network."""

    num_classes: int
    """Outputs."""
    image_size: int
    """Height and width of the images."""
    in_channels: int = 3
    """Channels of the images."""
    drop_path: float = 0.0
    """Largest rate of stochastic depth, in [0, 1)."""
    stem: str = "imagenet"
    """``imagenet`` shrinks the image four times at once, ``cifar`` keeps its size."""
    usual_weights: bool = False
    """Whether a small transformer's weights are initialised as if it were wide."""

    def __post_init__(self) -> None:
        check_count("num_classes", self.num_classes)
        check_count("image_size", self.image_size)
        check_count("in_channels", self.in_channels)
        check_range("drop_path", self.drop_path, 0, 1)


Builder = Callable[[NetworkShape], nn.Module]
