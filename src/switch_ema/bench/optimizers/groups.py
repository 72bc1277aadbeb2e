"""Parameter groups: which tensors have weight decay.

Published recipes for transformers and modern convolutional networks exempt biases,
normalisation layers, layer scales, special tokens and position embeddings; those that
train ResNets with SGD exempt nothing.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor, nn

_EXEMPT = re.compile(
    r"(cls|dist|reg|mask)_token|\w*pos_embed|\w*gamma|\w*scale"
    r"|relative_position_bias_table"
)
"""Last part of the name of exempt tensors that have several dimensions."""


def is_exempt(name: str, parameter: Tensor) -> bool:
    """Whether a tensor of a network has no weight decay where vectors are exempt.

    >>> import torch
    >>> is_exempt("head.bias", torch.ones(5)), is_exempt("weight", torch.ones(5, 3))
    (True, False)
    >>> is_exempt("vit.pos_embed", torch.ones(1, 17, 48))
    True
    """
    return parameter.ndim < 2 or bool(_EXEMPT.fullmatch(name.rpartition(".")[2]))


def exempt_names(model: nn.Module) -> set[str]:
    """Name the trainable parameters without weight decay.

    A model may name more in its method ``no_weight_decay``, as those of timm do.
    """
    own: Callable[[], Iterable[str]] = getattr(model, "no_weight_decay", tuple)
    found = _trainable(model)
    named = found.keys() & set(own())
    return named | {name for name, p in found.items() if is_exempt(name, p)}


def parameter_groups(
    model: nn.Module, *, decay_all: bool, **exempt: Any
) -> list[dict[str, Any]]:
    """Group the trainable parameters, with the optimizer's decay and without.

    Args:
        model: What to train.
        decay_all: Whether nothing is exempt; then there is one group.
        **exempt: Further settings of the exempt group.

    >>> network = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2))
    >>> [len(group["params"]) for group in parameter_groups(network, decay_all=False)]
    [1, 3]
    """
    parameters = _trainable(model)
    names = set() if decay_all else exempt_names(model)
    groups = [
        {"params": [p for name, p in parameters.items() if name not in names]},
        {
            "params": [p for name, p in parameters.items() if name in names],
            "weight_decay": 0.0,
            **exempt,
        },
    ]
    # A model without trainable parameters keeps one empty group, for torch's error.
    return [group for group in groups if group["params"]] or groups[:1]


def _trainable(model: nn.Module) -> Mapping[str, nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}
