"""Networks: the paper's in ``catalog``, the simplest in ``basic``."""

from switch_ema.bench.stacking.modules import Stacked
from switch_ema.zoo.models.basic import (
    IMAGE_NETWORKS,
    STACKS,
    image_network,
    mlp,
    small_cnn,
)
from switch_ema.zoo.models.catalog import (
    NETWORKS,
    SCALES,
    NetworkInfo,
    create_network,
)

__all__ = [
    "IMAGE_NETWORKS",
    "NETWORKS",
    "SCALES",
    "STACKS",
    "NetworkInfo",
    "Stacked",
    "create_network",
    "image_network",
    "mlp",
    "small_cnn",
]
