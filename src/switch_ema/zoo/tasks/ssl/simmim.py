"""SimMIM (Xie et al., 2022)."""

from collections.abc import Mapping
from dataclasses import replace
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

    @classmethod
    def recipe_for(cls, options: Mapping[str, Any]) -> Recipe:
        """Return the recipe; on ImageNet the rate falls once, after 7/8 of it."""
        recipe = super().recipe_for(options)
        is_full = options.get("scale") == "paper"
        if not (is_full and options.get("dataset") == "imagenet"):
            return recipe
        return replace(recipe, schedule="step:milestones=(0.875,)")

    def encoder(self, *, drop_path: float | None = None) -> nn.Module:
        """Make the encoder; at the paper's scale with stochastic depth of 0.1."""
        usual = 0.1 if self.scale == "paper" else 0.0
        return super().encoder(drop_path=usual if drop_path is None else drop_path)

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
