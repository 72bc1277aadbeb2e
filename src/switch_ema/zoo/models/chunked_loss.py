"""Cross-entropy over a large vocabulary, without all logits at once."""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear
from torch.utils.checkpoint import checkpoint

_MOST = 2**25
"""Logits that exist at a time: 134 MB in float32."""


def chunked_cross_entropy(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    *,
    reduction: str = "mean",
) -> Tensor:
    """Return the cross-entropy of a linear classifier, chunk by chunk.

    The logits of a chunk are computed, reduced to a loss and dropped, and computed
    again for the gradients. Values and gradients equal those of the whole up to
    rounding; logits that are few enough are computed whole.

    Args:
        features: Inputs of the classifier, examples x width.
        weight: Its weights, classes x width.
        bias: Its bias, if any.
        targets: Indices of the right classes.
        reduction: ``mean`` or ``sum`` over the examples.

    >>> x, w = torch.eye(2), torch.zeros(3, 2)  # three classes, all equally likely
    >>> round(chunked_cross_entropy(x, w, None, torch.tensor([0, 2])).exp().item(), 3)
    3.0
    """
    rows = max(_MOST // len(weight), 1)
    if len(features) <= rows:
        logits = linear(features, weight, bias)
        return cross_entropy(logits, targets, reduction=reduction)
    total = features.new_zeros((), dtype=torch.float32)
    for part, wanted in zip(
        torch.split(features, rows), torch.split(targets, rows), strict=True
    ):
        total = total + checkpoint(
            _summed, part, weight, bias, wanted, use_reentrant=False
        )
    return total if reduction == "sum" else total / len(features)


def _summed(
    features: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor
) -> Tensor:
    logits = linear(features, weight, bias)
    return cross_entropy(logits, targets, reduction="sum")
