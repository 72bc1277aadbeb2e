"""Rounds weights as deployment does: bf16, or int8 and int4 with a scale per channel.

Only weights with at least two dimensions are rounded; biases and the parameters of
normalisation layers stay as they are, as do activations.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

_BITS = {"int8": 8, "int4": 4}


def round_weights(
    state: Mapping[str, Tensor], kind: str, *, stacked: bool = False
) -> dict[str, Tensor]:
    """Return the weights as they are after rounding, in their own precision.

    Integers are symmetric: the largest magnitude of a channel, an index of the first
    dimension, becomes the largest integer. Tensors with fewer than two dimensions are
    returned themselves.

    Args:
        state: weights by name.
        kind: bf16, int8 or int4.
        stacked: whether the first dimension counts networks; each is rounded alone.

    >>> round_weights({"weight": torch.tensor([[7.0, 3.4], [0.0, 0.0]])}, "int4")
    {'weight': tensor([[7., 3.],
            [0., 0.]])}
    """
    channel = 1 if stacked else 0
    return {
        name: _rounded(tensor, kind, channel)
        if tensor.is_floating_point() and tensor.ndim >= channel + 2 and tensor.numel()
        else tensor
        for name, tensor in state.items()
    }


@contextmanager
def rounded(model: nn.Module, kind: str, *, stacked: bool = False) -> Iterator[None]:
    """Round the parameters of a model inside the block; afterwards restore them."""
    with torch.no_grad():
        own = dict(model.named_parameters())
        found = round_weights(own, kind, stacked=stacked)
        kept = {n: p.clone() for n, p in own.items() if found[n] is not p}
        try:
            for name in kept:
                own[name].copy_(found[name])
            yield
        finally:
            for name, tensor in kept.items():
                own[name].copy_(tensor)


def _rounded(tensor: Tensor, kind: str, channel: int) -> Tensor:
    if kind == "bf16":
        return tensor.bfloat16().to(tensor.dtype)
    most: int = 2 ** (_BITS[kind] - 1) - 1
    # On the CPU, as some devices have no float64.
    rows = tensor.detach().to("cpu", torch.float64).flatten(channel + 1)
    scale = rows.abs().amax(-1, keepdim=True) / most
    levels = (rows / scale.where(scale > 0, 1.0)).round()
    return (levels * scale).reshape(tensor.shape).to(tensor)
