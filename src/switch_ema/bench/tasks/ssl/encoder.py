"""Encoders: classification networks without their classifier, and heads on them."""

from torch import Tensor, nn

from switch_ema.bench.models.catalog import create_network


def create_encoder(
    network: str,
    *,
    scale: str,
    channels: int,
    image_size: int,
    pool: str | None = None,
    drop_path: float = 0.0,
) -> nn.Module:
    """Make a network that returns features, one vector of ``num_features`` per image.

    Args:
        network: A name of ``NETWORKS`` whose network comes from timm.
        scale: ``small`` or ``paper``.
        channels: Of the images.
        image_size: Height and width of the images.
        pool: How the tokens of a vision transformer become one vector: ``token`` or
            ``avg``; None leaves the network's own way.
        drop_path: Stochastic depth in [0, 1).
    """
    model = create_network(
        network,
        num_classes=1,
        image_size=image_size,
        scale=scale,
        in_channels=channels,
        drop_path=drop_path,
        # Random features of weights that suit the width are so good that a probe of
        # digits reaches 90% with them, and would tell little of what was learned.
        usual_weights=True,
    )
    reset = getattr(model, "reset_classifier", None)
    if reset is None:
        raise ValueError(
            f"network must be one with a classifier to take off: {network!r}."
        )
    reset(0, **({} if pool is None else {"global_pool": pool}))
    return model


def width_of(encoder: nn.Module) -> int:
    """Return how many features an encoder has."""
    return int(getattr(encoder, "num_features"))  # noqa: B009 - timm's, untyped


class Embedder(nn.Module):
    """An encoder and the projector whose output is compared between views."""

    def __init__(self, encoder: nn.Module, projector: nn.Module) -> None:
        super().__init__()
        self.encoder, self.projector = encoder, projector

    def forward(self, x: Tensor) -> Tensor:
        """Embed images."""
        projection: Tensor = self.projector(self.encoder(x))
        return projection


class TwoViewModel(nn.Module):
    """What the methods that compare views train.

    A teacher runs the part ``embedder`` alone; the predictor is the student's.
    """

    def __init__(
        self,
        encoder: nn.Module,
        projector: nn.Module,
        predictor: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.embedder = Embedder(encoder, projector)
        self.predictor = nn.Identity() if predictor is None else predictor

    @property
    def encoder(self) -> nn.Module:
        """The part that is kept after pre-training."""
        return self.embedder.encoder

    def forward(self, *views: Tensor) -> tuple[Tensor, ...]:
        """Embed views one by one, so that batch statistics are of one view each."""
        return tuple(self.predictor(self.embedder(view)) for view in views)
