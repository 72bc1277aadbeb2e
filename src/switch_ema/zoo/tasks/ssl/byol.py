"""BYOL (Grill et al., 2020)."""

from typing import Any

from torch import Tensor, nn

from switch_ema.bench.task import SelfTeachingTask
from switch_ema.zoo.data.sources import need
from switch_ema.zoo.tasks.ssl import settings
from switch_ema.zoo.tasks.ssl.pretraining import width_of
from switch_ema.zoo.tasks.ssl.two_views import TwoViewModel, TwoViews


class BYOL(TwoViews, SelfTeachingTask):
    """BYOL: predict the averaged model's embedding of another view."""

    undivided = ""
    paper = settings.BYOL

    def model(self) -> nn.Module:
        """Make encoder, projector and predictor."""
        encoder = self.encoder()
        heads, sizes = need("lightly.models.modules.heads"), self.sizes(4096, 256)
        projector = heads.BYOLProjectionHead(width_of(encoder), **sizes)
        predictor = heads.BYOLPredictionHead(sizes["output_dim"], **sizes)
        return TwoViewModel(encoder, projector, predictor)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Compare each view's prediction with the teacher's embedding of the other."""
        predictions = model(*batch)
        teacher = self.teacher(model)
        first, second = (teacher(view, part="embedder") for view in batch)
        return distance(predictions[0], second) + distance(predictions[1], first)


def distance(prediction: Tensor, target: Tensor) -> Tensor:
    """Return the mean squared distance of the unit vectors, ``2 - 2 * cosine``."""
    negative: Tensor = need("lightly.loss").NegativeCosineSimilarity()(
        prediction, target
    )
    return 2 + 2 * negative
