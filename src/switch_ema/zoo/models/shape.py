"""Input, output and stochastic-depth settings of image networks."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from switch_ema._checks import check_count, check_range


@dataclass(frozen=True, kw_only=True)
class NetworkShape:
    """Images, classes and stochastic depth of a network."""

    num_classes: int
    """Outputs."""
    image_size: int
    """Height and width of the images."""
    in_channels: int = 3
    """Channels of the images."""
    drop_path: float = 0.0
    """Maximum rate of stochastic depth, in [0, 1)."""
    stem: str = "imagenet"
    """``imagenet`` downsamples by four, ``cifar`` keeps the size."""
    resizes: bool = False
    """Whether a DeiT resamples its positions to images of another size."""
    usual_weights: bool = False
    """Whether to initialise a small transformer's weights like a wide one's."""

    def __post_init__(self) -> None:
        check_count("num_classes", self.num_classes)
        check_count("image_size", self.image_size)
        check_count("in_channels", self.in_channels)
        check_range("drop_path", self.drop_path, 0, 1)


Builder = Callable[[NetworkShape], nn.Module]
