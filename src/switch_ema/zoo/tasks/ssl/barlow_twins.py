"""Barlow Twins (Zbontar et al., 2021)."""

from torch import Tensor, nn

from switch_ema.bench.task import JointLossTask
from switch_ema.zoo.data.sources import need
from switch_ema.zoo.tasks.ssl import settings
from switch_ema.zoo.tasks.ssl.pretraining import width_of
from switch_ema.zoo.tasks.ssl.two_views import TwoViewModel, TwoViews


class BarlowTwins(TwoViews, JointLossTask):
    """Barlow Twins: make features equal across two views and uncorrelated otherwise."""

    paper = settings.BARLOW_TWINS

    def model(self) -> nn.Module:
        """Make encoder and projector."""
        encoder = self.encoder()
        head = need("lightly.models.modules.heads").BarlowTwinsProjectionHead
        return TwoViewModel(encoder, head(width_of(encoder), **self.sizes(8192, 8192)))

    def joint_loss(
        self,
        model: nn.Module,
        embeddings: tuple[Tensor, ...],
        targets: tuple[Tensor, ...],
    ) -> Tensor:
        """Push the cross-correlation of the projections towards the identity."""
        compare = need("lightly.loss").BarlowTwinsLoss(lambda_param=5.1e-3)
        loss: Tensor = compare(*embeddings)
        return loss
