"""Tasks that compare two views of each image."""

from functools import cached_property
from typing import Any, ClassVar

from torch import Tensor, nn

from switch_ema.bench.task import Loader, Recipe
from switch_ema.zoo.data.sources import need
from switch_ema.zoo.tasks.ssl.pretraining import Pretraining
from switch_ema.zoo.tasks.ssl.views import (
    DrawnBatches,
    ViewLoader,
    make_view,
)

_LEAST_CROP = {"digits": 0.4}
"""Minimum share of the image's area in a crop, by dataset; 8 by 8 images allow no small
crops."""

_SIMCLR = {
    "min_scale": 0.08,
    "hf_prob": 0.5,
    "cj_prob": 0.8,
    "cj_bright": 0.4,
    "cj_contrast": 0.4,
    "cj_sat": 0.4,
    "cj_hue": 0.1,
    "random_gray_scale": 0.2,
    "gaussian_blur": 0.5,
}
"""Strengths and probabilities at the paper's scale, as lightly names them."""


class _Embedder(nn.Module):
    """An encoder and a projector, whose outputs are compared between views."""

    def __init__(self, encoder: nn.Module, projector: nn.Module) -> None:
        super().__init__()
        self.encoder, self.projector = encoder, projector

    def forward(self, x: Tensor) -> Tensor:
        """Embed images."""
        projection: Tensor = self.projector(self.encoder(x))
        return projection


class TwoViewModel(nn.Module):
    """The model of methods that compare two views.

    The teacher runs only ``embedder``; only the student has the predictor.
    """

    def __init__(
        self,
        encoder: nn.Module,
        projector: nn.Module,
        predictor: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.embedder = _Embedder(encoder, projector)
        self.predictor = nn.Identity() if predictor is None else predictor

    @property
    def encoder(self) -> nn.Module:
        """The part that is kept after pre-training."""
        return self.embedder.encoder

    def forward(self, *views: Tensor) -> tuple[Tensor, ...]:
        """Embed views separately, to keep their batch statistics apart."""
        return tuple(self.predictor(self.embedder(view)) for view in views)


class TwoViews(Pretraining):
    """Batches are pairs of views; the model is a :class:`TwoViewModel`."""

    networks: ClassVar[tuple[str, ...]] = ("resnet18", "resnet50")
    uses_all_parameters = True
    recipe = Recipe(
        epochs=25,
        schedule="cosine",
        methods={"ema": {"decay": 0.9}, "switch-ema": {"decay": 0.9}},
        revision=1,  # tensors without weight decay
    )

    def batches(self, epoch: int) -> Loader:
        """Shuffle the images and draw two views of each image."""
        if self.one_by_one:
            return self._views.epoch(epoch)
        return DrawnBatches(self, epoch, self._draw)

    def _draw(self, images: Tensor, generator: Any) -> tuple[Tensor, ...]:
        least = _LEAST_CROP.get(self.dataset, 0.2)
        mirrored = self.data.mirrored
        return tuple(
            self.prepare(make_view(images, generator, least=least, mirrored=mirrored))
            for _ in range(2)
        )

    @cached_property
    def _views(self) -> ViewLoader:
        """SimCLR's augmentations with the paper's strengths, for all methods."""
        transform = need("lightly.transforms").SimCLRTransform(
            input_size=self.image_size,
            normalize={},  # on the device
            **_SIMCLR,
        )
        return ViewLoader(self, transform)

    @property
    def augmentation(self) -> str:
        """The views in words, for those who compare recipes."""
        strengths = ", ".join(f"{name} {value:g}" for name, value in _SIMCLR.items())
        return f"two views by SimCLR's transform: {strengths}"

    def embed(self, model: nn.Module, batch: Any) -> tuple[Tensor, ...]:
        """Embed both views."""
        embeddings: tuple[Tensor, ...] = model(*batch)
        return embeddings

    def encoder_of(self, model: nn.Module) -> nn.Module:
        """Return the encoder without the heads."""
        assert isinstance(model, TwoViewModel)
        return model.encoder

    def sizes(self, hidden: int, output: int) -> dict[str, int]:
        """Return the layer sizes of a head; the arguments are the paper's sizes."""
        if self.scale == "small":
            hidden, output = 128, 64
        return {"hidden_dim": hidden, "output_dim": output}
