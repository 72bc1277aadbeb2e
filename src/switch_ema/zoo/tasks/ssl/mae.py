"""MAE (He et al., 2022)."""

from typing import Any

import torch
from torch import Tensor, nn

from switch_ema.averaging.model.names import unwrap
from switch_ema.bench.task import Recipe
from switch_ema.zoo.data.sources import need
from switch_ema.zoo.tasks.ssl import settings
from switch_ema.zoo.tasks.ssl.masked import (
    Masked,
    MaskedModel,
    hidden_mean,
    patches_of,
)
from switch_ema.zoo.tasks.ssl.pretraining import width_of, xavier_


class _MAEModel(MaskedModel):
    """Encodes the visible patches; a small transformer decodes the others."""

    def __init__(self, vit: nn.Module, *, width: int, depth: int, heads: int) -> None:
        super().__init__()
        wrap = need("lightly.models.modules").MaskedVisionTransformerTIMM
        self.masked = wrap(vit, weight_initialization="skip")
        decoder = need("lightly.models.modules").MaskedVisionTransformerDecoderTIMM
        inner = self.masked.vit
        self.embed = nn.Linear(width_of(vit), width)
        self.decoder = decoder(
            inner.patch_embed.num_patches,
            width,
            depth,
            heads,
            num_prefix_tokens=inner.num_prefix_tokens,
        )
        self.predict = nn.Linear(width, self.values)

    @property
    def encoder(self) -> nn.Module:
        """The part that is kept after pre-training."""
        vit: nn.Module = self.masked.vit
        return vit

    def forward(self, images: Tensor, mask: Tensor) -> Tensor:
        """Predict the pixels of every patch; all images mask equally many."""
        prefix = self.masked.vit.num_prefix_tokens
        shown = shown_tokens(mask, prefix)
        kept = self.embed(self.masked.encode(images, idx_keep=shown))
        length = mask.shape[1] + prefix
        tokens = self.decoder.mask_token.to(kept.dtype).expand(len(mask), length, -1)
        tokens = tokens.scatter(1, shown[:, :, None].expand_as(kept), kept)
        prediction: Tensor = self.predict(self.decoder(tokens)[:, prefix:])
        return prediction


class MAE(Masked):
    """MAE: encode a quarter of the patches and reconstruct the others."""

    paper = settings.MAE
    share = 0.75
    unit = 1
    least_crop = 0.2
    recipe = Recipe(
        epochs=15,
        schedule="cosine",
        methods={"ema": {"decay": 0.9}, "switch-ema": {"decay": 0.9}},
        revision=1,  # tensors without weight decay
    )

    def model(self) -> nn.Module:
        """Make encoder and decoder."""
        small = self.scale == "small"
        sizes = (32, 1, 2) if small else (512, 8, 16)
        width, depth, heads = sizes
        model = _MAEModel(self.encoder(), width=width, depth=depth, heads=heads)
        if not small:
            xavier_(model, separate=False)
        return model

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the mean squared error of pixels in the masked patches."""
        images, mask = batch
        inner = unwrap(model)
        assert isinstance(inner, _MAEModel)
        target = patches_of(images, inner.patch)
        if self.scale == "paper":
            # Patches of small images have too few pixels to normalise.
            target = normalised(target)
        return hidden_mean((model(images, mask) - target).square(), mask)


def shown_tokens(mask: Tensor, prefix: int) -> Tensor:
    """Return the indices of visible tokens in order, prefix tokens first."""
    count = int((~mask[0]).sum())
    patches = mask.int().argsort(dim=1, stable=True)[:, :count] + prefix
    first = torch.arange(prefix, device=mask.device).expand(len(mask), -1)
    return torch.cat([first, patches], 1)


def normalised(patches: Tensor) -> Tensor:
    """Normalise each patch to mean 0 and standard deviation 1."""
    variance, mean = torch.var_mean(patches, dim=2, keepdim=True)
    return (patches - mean) / (variance + 1e-6).sqrt()
