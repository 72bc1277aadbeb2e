"""SimMIM (Xie et al., 2022)."""

from typing import Any

from torch import Tensor, nn
from torch.nn.functional import l1_loss, pad

from switch_ema.averaging.model.names import unwrap
from switch_ema.bench.task import Recipe
from switch_ema.zoo.tasks.ssl import settings
from switch_ema.zoo.tasks.ssl.masked import (
    Masked,
    MaskedModel,
    hidden_mean,
    patches_of,
)
from switch_ema.zoo.tasks.ssl.pretraining import width_of


class SimMIMModel(MaskedModel):
    """Replaces masked patches by a learned token; a linear layer predicts pixels."""

    def __init__(self, vit: nn.Module) -> None:
        super().__init__(vit)
        self.decoder = nn.Linear(width_of(vit), self.values)

    def encode(self, images: Tensor, mask: Tensor) -> Tensor:
        """Return all tokens, including the class token."""
        prefix = self.masked.vit.num_prefix_tokens
        tokens: Tensor = self.masked.encode(images, mask=pad(mask, (prefix, 0)))
        return tokens

    def forward(self, images: Tensor, mask: Tensor) -> Tensor:
        """Predict the pixels of every patch."""
        prefix = self.masked.vit.num_prefix_tokens
        prediction: Tensor = self.decoder(self.encode(images, mask)[:, prefix:])
        return prediction


class SimMIM(Masked):
    """SimMIM: reconstruct the pixels of large masked squares with a linear layer."""

    paper = settings.SIMMIM
    share = 0.6
    unit = 2
    least_crop = 0.67
    recipe = Recipe(
        epochs=12,
        schedule="cosine",
        methods={"ema": {"decay": 0.9}, "switch-ema": {"decay": 0.9}},
        revision=1,  # tensors without weight decay
    )

    def model(self) -> nn.Module:
        """Make encoder and decoder."""
        return SimMIMModel(self.encoder())

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the mean absolute error of pixels in the masked patches."""
        images, mask = batch
        target = patches_of(images, self.patch_of(model))
        errors = l1_loss(model(images, mask), target, reduction="none")
        return hidden_mean(errors, mask)

    @staticmethod
    def patch_of(model: nn.Module) -> int:
        """Return the side of a patch."""
        inner = unwrap(model)
        assert isinstance(inner, MaskedModel)
        return inner.patch
