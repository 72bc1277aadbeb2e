"""What is known about a classification network of the paper."""

from dataclasses import dataclass

from switch_ema.bench.models.network_shape import Builder


@dataclass(frozen=True, kw_only=True)
class Published:
    """How many parameters a publication counts, and for which network."""

    millions: float
    """Parameters in millions."""
    classes: int = 1000
    """Outputs; 0 if the classifier is not counted."""
    image_size: int = 224
    """Height and width of the images."""
    source: str
    """Where the count is found."""


@dataclass(frozen=True, kw_only=True)
class NetworkInfo:
    """One network: what the paper calls it, and how to make it."""

    name: str
    """Name in this library."""
    title: str
    """Name in the paper."""
    family: str
    """``classical cnn``, ``transformer``, ``mlp`` or ``modern cnn``."""
    make: Builder
    """Makes the network of the paper."""
    make_small: Builder
    """Makes the small sibling, of the same class."""
    published: Published
    """Its size."""
    stems: tuple[str, ...] = ("imagenet", "cifar")
    """Which stems it has at the size of the paper, that for small images last."""
    residual: bool = True
    """Whether it has blocks around which stochastic depth can go."""
    cifar_size: int = 32
    """To which size CIFAR images are brought for it."""
