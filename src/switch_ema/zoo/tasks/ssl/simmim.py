"""SimMIM (Xie et al., 2022)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import l1_loss

from switch_ema.averaging.model.names import unwrap
from switch_ema.bench.task import Recipe
from switch_ema.zoo.models.relative_vit import (
    copy_to_blocks,
    encode,
    relative_vit,
    truncated_normal_,
)
from switch_ema.zoo.models.shape import NetworkShape
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
        super().__init__()
        self.vit = vit
        self.mask_token = nn.Parameter(torch.empty(width_of(vit)))
        truncated_normal_(self.mask_token)
        self.decoder = nn.Linear(width_of(vit), self.values)

    @property
    def encoder(self) -> nn.Module:
        """The part that is kept after pre-training."""
        return self.vit

    def embed(self, images: Tensor, mask: Tensor) -> Tensor:
        """Return the tokens of the patches, the masked ones hidden."""
        vit: Any = self.vit
        tokens: Tensor = vit.patch_embed(images)
        return torch.where(mask[:, :, None], self.mask_token.to(tokens.dtype), tokens)

    def forward(self, images: Tensor, mask: Tensor) -> Tensor:
        """Predict the pixels of every patch."""
        encoded = encode(self.vit, self.embed(images, mask))
        prediction: Tensor = self.decoder(encoded[:, 1:])  # without the class token
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
        revision=2,  # relative positions
    )

    @classmethod
    def recipe_for(cls, options: Mapping[str, Any]) -> Recipe:
        """Return the recipe; on ImageNet the rate falls once, after 7/8 of it.

        On the others it ends at 4e-5, a tenth of the rate at full batches.
        """
        recipe = super().recipe_for(options)
        if options.get("scale") != "paper":
            return recipe
        on_imagenet = options.get("dataset") == "imagenet"
        schedule = "step:milestones=(0.875,)" if on_imagenet else "cosine:final=0.1"
        return replace(recipe, schedule=schedule, revision=cls.recipe.revision)

    def encoder(self, *, drop_path: float | None = None) -> nn.Module:
        """Make the encoder; at the paper's scale with stochastic depth of 0.1."""
        usual = 0.1 if self.scale == "paper" else 0.0
        return self._vit(usual if drop_path is None else drop_path, shared=True)

    def _vit(self, drop_path: float, *, shared: bool) -> nn.Module:
        shape = NetworkShape(
            num_classes=1,
            image_size=self.image_size,
            in_channels=self.channels,
            drop_path=drop_path,
        )
        return relative_vit(self.network, self.scale, shape, shared=shared)

    def copy_to_tune(self, encoder: nn.Module, *, drop_path: float) -> nn.Module:
        """Make a copy whose blocks have positions of their own."""
        network = self._vit(drop_path, shared=False)
        copy_to_blocks(encoder, network)
        return network

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
