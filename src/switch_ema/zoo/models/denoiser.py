"""The noise-predicting U-Net of DDPM, from diffusers."""

from dataclasses import dataclass
from typing import Any, cast

from torch import nn

from switch_ema.zoo.data import sources


@dataclass(frozen=True, kw_only=True)
class DenoiserShape:
    """Sizes of a U-Net as in DDPM (Ho et al., 2020)."""

    image_size: int
    channels: int
    """Channels of the images: 1 or 3."""
    widths: tuple[int, ...]
    """Channels at each resolution; each is half the previous one."""
    attends: tuple[bool, ...]
    """Whether self-attention follows the residual blocks, by resolution."""
    layers: int = 2
    """Residual blocks at each resolution, on the way down."""
    groups: int = 32
    """Groups of the group normalisation."""
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if len(self.widths) != len(self.attends):
            raise ValueError(
                f"attends must have {len(self.widths)} values, one for each width, "
                f"got {len(self.attends)}."
            )
        halvings = 2 ** (len(self.widths) - 1)
        if self.image_size % halvings:
            raise ValueError(
                f"image_size must be a multiple of {halvings} for {len(self.widths)} "
                f"resolutions, got {self.image_size}."
            )


def create_denoiser(shape: DenoiserShape) -> nn.Module:
    """Make the network; ``model(images, timesteps).sample`` is the predicted noise."""
    make: Any = sources.need("diffusers").UNet2DModel
    down = [
        "AttnDownBlock2D" if attends else "DownBlock2D" for attends in shape.attends
    ]
    up = [
        "AttnUpBlock2D" if attends else "UpBlock2D"
        for attends in reversed(shape.attends)
    ]
    model = make(
        sample_size=shape.image_size,
        in_channels=shape.channels,
        out_channels=shape.channels,
        block_out_channels=shape.widths,
        layers_per_block=shape.layers,
        down_block_types=tuple(down),
        up_block_types=tuple(up),
        attention_head_dim=None,  # one head, as in DDPM
        norm_num_groups=shape.groups,
        norm_eps=1e-6,
        flip_sin_to_cos=False,  # embeds a step as sines, then cosines
        freq_shift=1,  # frequencies from 1 down to 1/10,000, both included
        downsample_padding=0,  # pads on the right and below only, as in TensorFlow
        dropout=shape.dropout,
    )
    made = cast(nn.Module, model)
    _initialise(made)
    return made


def _initialise(model: nn.Module) -> None:
    """Start as DDPM does: Xavier's uniform weights, and branches of almost zero.

    The last layer of each residual and attention branch, and of the network, has
    Xavier's variance times 1e-10. So each branch starts as the identity, and the first
    predicted noise is 0.
    """
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            is_last = name.endswith((".conv2", ".to_out.0")) or name == "conv_out"
            nn.init.xavier_uniform_(layer.weight, gain=1e-5 if is_last else 1.0)
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)
