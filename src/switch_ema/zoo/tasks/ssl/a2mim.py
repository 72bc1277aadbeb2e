"""A2MIM (Li et al., 2023), with the released settings for transformers."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import l1_loss

from switch_ema.bench.sharding import Shard
from switch_ema.zoo.data.sources import need
from switch_ema.zoo.tasks.ssl.masked import hidden_mean, patches_of
from switch_ema.zoo.tasks.ssl.simmim import SimMIM, SimMIMModel

_FOURIER = 0.1
"""Weight of the frequency loss."""


class _A2MIMModel(SimMIMModel):
    """Masked patches get the image's mean colour plus a learned token."""

    def embed(self, images: Tensor, mask: Tensor) -> Tensor:
        """Return the tokens of the patches, the masked ones hidden."""
        vit: Any = self.vit
        tokens: Tensor = vit.patch_embed(fill_with_mean(images, mask, self.patch))
        return tokens + mask[:, :, None] * self.mask_token.to(tokens.dtype)


class A2MIM(SimMIM):
    """A2MIM: reconstruct masked squares in pixels and frequencies."""

    shares_loss = True

    def model(self) -> nn.Module:
        """Make encoder and decoder."""
        return _A2MIMModel(self.encoder())

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the loss on masked pixels plus the frequency loss of the image."""
        images, mask = batch
        patch = self.patch_of(model)
        prediction = model(images, mask)
        target = patches_of(images, patch)
        pixels = hidden_mean(l1_loss(prediction, target, reduction="none"), mask)
        # Visible patches have nothing to learn, so no gradient; half of the
        # prediction stays there to soften the seams between patches.
        shown = (prediction.detach() + target) / 2
        drawn = torch.where(mask[:, :, None], prediction, shown)
        whole = need("lightly.models.utils").unpatchify(drawn, patch, images.shape[1])
        return pixels + _FOURIER * frequency_loss(whole, images, self.shard)


def fill_with_mean(images: Tensor, mask: Tensor, patch: int) -> Tensor:
    """Fill the masked patches with the image's mean colour."""
    side = images.shape[-1] // patch
    hidden = mask.view(-1, 1, side, side)
    hidden = hidden.repeat_interleave(patch, 2).repeat_interleave(patch, 3)
    return torch.where(hidden, images.mean((2, 3), keepdim=True), images)


def frequency_loss(images: Tensor, targets: Tensor, shard: Shard) -> Tensor:
    """Return the focal frequency loss (Jiang et al., 2021), as A2MIM uses it.

    The squared error of the spectra averaged over the batch, those of all workers, each
    frequency weighted by the logarithm of its current error relative to the largest.
    """
    first, second = (
        torch.fft.fft2(x.float(), norm="ortho").mean(0) for x in (images, targets)
    )
    error = shard.mean(torch.view_as_real(first - second), len(images))
    distance = error.square().sum(-1)
    weight = (distance.detach().sqrt() + 1).log()
    return (weight / weight.max().clamp(min=1e-12) * distance).mean()
