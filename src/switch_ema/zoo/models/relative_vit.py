"""The vision transformer of SimMIM and A2MIM: relative positions, no absolute ones.

It is BEiT's, which timm has. Attention adds a learned bias for each offset between two
patches; layer scale starts from 0.1. All blocks share one table of biases while it is
pre-trained; fine-tuning gives each block a copy of its own.
"""

from typing import Any, cast

import torch
from torch import Tensor, nn

from switch_ema.zoo.data.sources import need
from switch_ema.zoo.models.builders import small_deit_patch
from switch_ema.zoo.models.shape import NetworkShape

_SIZES = {
    "paper": {"deit-t": (192, 12, 3), "deit-s": (384, 12, 6), "deit-b": (768, 12, 12)},
    "small": {"deit-t": (32, 2, 2), "deit-s": (48, 2, 3), "deit-b": (64, 2, 4)},
}
"""Width, blocks and heads, by scale and the name of the DeiT of the same size."""
_LAYER_SCALE = 0.1
"""First value of each block's layer scale at the paper's scale."""


def relative_vit(
    network: str, scale: str, shape: NetworkShape, *, shared: bool = True
) -> nn.Module:
    """Make the network, without a classifier and with the mean of the patches pooled.

    Args:
        network: Name of the DeiT of the same size.
        scale: ``small`` or ``paper``. A patch of a small image is a pixel or a few, of
            which the mean over patches keeps nothing but their values; small networks
            therefore have sine-cosine positions as well, and no layer scale.
        shape: Images and stochastic depth.
        shared: Whether the blocks share a table of biases; otherwise, as when
            fine-tuned, each block has its own, and the norm follows the pooling.
    """
    from timm.models.beit import Beit

    width, depth, heads = _SIZES[scale][network]
    vit = Beit(
        img_size=shape.image_size,
        patch_size=16 if scale == "paper" else small_deit_patch(shape),
        in_chans=shape.in_channels,
        num_classes=0,
        global_pool="token" if shared else "avg",
        embed_dim=width,
        depth=depth,
        num_heads=heads,
        drop_path_rate=shape.drop_path,
        init_values=_LAYER_SCALE if scale == "paper" else None,
        use_abs_pos_emb=scale == "small",
        use_rel_pos_bias=not shared,
        use_shared_rel_pos_bias=shared,
    )
    vit.reset_classifier(0, "avg")
    _initialise(vit)
    return vit


def _initialise(vit: nn.Module) -> None:
    """Draw weights within one standard deviation of 0.02, as SimMIM does."""
    for layer in vit.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            truncated_normal_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    beit: Any = vit
    truncated_normal_(beit.cls_token)
    beit.fix_init_weight()  # divides by the root of twice the block's number
    if beit.pos_embed is not None:
        utils = need("lightly.models.utils")
        utils.initialize_2d_sine_cosine_positional_embedding(beit.pos_embed, 1)


def truncated_normal_(tensor: Tensor, std: float = 0.02) -> None:
    """Draw from a normal distribution, truncated at one standard deviation."""
    nn.init.trunc_normal_(tensor, std=std, a=-std, b=std)


def encode(vit: nn.Module, tokens: Tensor) -> Tensor:
    """Apply the blocks and the norm to embedded patches; the class token comes first.

    Args:
        vit: Made by :func:`relative_vit`.
        tokens: (count, patches, width).
    """
    beit: Any = vit
    tokens = torch.cat([beit.cls_token.expand(len(tokens), -1, -1), tokens], 1)
    if beit.pos_embed is not None:
        tokens = tokens + beit.pos_embed
    shared = beit.rel_pos_bias
    bias = None if shared is None else shared()
    for block in beit.blocks:
        tokens = block(tokens, shared_rel_pos_bias=bias)
    return cast(Tensor, beit.norm(tokens))


def copy_to_blocks(source: nn.Module, target: nn.Module) -> None:
    """Load pre-trained weights into a network whose blocks have tables of their own.

    Each block begins with a copy of the shared table. The norm of the tokens is not
    loaded, since that of the pooled features takes its place.
    """
    weights = dict(source.state_dict())
    table = weights.pop("rel_pos_bias.relative_position_bias_table")
    weights = {k: v for k, v in weights.items() if not k.startswith("norm.")}
    for index in range(len(cast(Any, target).blocks)):
        weights[f"blocks.{index}.attn.relative_position_bias_table"] = table
    missing, unexpected = target.load_state_dict(weights, strict=False)
    assert not unexpected and all(name.startswith("fc_norm.") for name in missing)
