"""SimCLR (Chen et al., 2020)."""

from torch import Tensor, nn

from switch_ema.bench.task import JointLossTask
from switch_ema.zoo.data.sources import need
from switch_ema.zoo.tasks.ssl import settings
from switch_ema.zoo.tasks.ssl.pretraining import width_of
from switch_ema.zoo.tasks.ssl.two_views import TwoViewModel, TwoViews


class SimCLR(TwoViews, JointLossTask):
    """SimCLR: attract two views of an image, repel views of other images."""

    paper = settings.SIMCLR
    temperature = 0.1

    def model(self) -> nn.Module:
        """Make encoder and projector."""
        encoder = self.encoder()
        head = need("lightly.models.modules.heads").SimCLRProjectionHead
        return TwoViewModel(encoder, head(width_of(encoder), **self.sizes(2048, 128)))

    def joint_loss(
        self,
        model: nn.Module,
        embeddings: tuple[Tensor, ...],
        targets: tuple[Tensor, ...],
    ) -> Tensor:
        """Find the other view of each image among all views of the batch."""
        contrast = need("lightly.loss").NTXentLoss(temperature=self.temperature)
        loss: Tensor = contrast(*embeddings)
        return loss
