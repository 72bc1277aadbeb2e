"""SimCLR (Chen et al., 2020)."""

from typing import Any

from torch import Tensor, nn

from switch_ema.zoo.data.sources import need
from switch_ema.zoo.tasks.ssl import settings
from switch_ema.zoo.tasks.ssl.pretraining import width_of
from switch_ema.zoo.tasks.ssl.two_views import TwoViewModel, TwoViews


class SimCLR(TwoViews):
    """SimCLR: attract two views of an image, repel views of other images."""

    undivided = "its loss compares the images of a batch with each other"
    paper = settings.SIMCLR
    temperature = 0.1

    def model(self) -> nn.Module:
        """Make encoder and projector."""
        encoder = self.encoder()
        head = need("lightly.models.modules.heads").SimCLRProjectionHead
        return TwoViewModel(encoder, head(width_of(encoder), **self.sizes(2048, 128)))

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Find the other view of each image among all views of the batch."""
        first, second = model(*batch)
        contrast = need("lightly.loss").NTXentLoss(temperature=self.temperature)
        loss: Tensor = contrast(first, second)
        return loss
