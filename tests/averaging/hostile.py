"""Values that a state dict of unknown origin may hold."""

import torch

COUNTS = ("steps", "epochs", "switches", "epoch_start", "waiting_for")
VALUES = (None, -1, 1.5, "3", [None], {"a": 1}, float("nan"), True)


def unusual(like):
    yield "meta", torch.empty_like(like, device="meta")
    yield "sparse", like.to_sparse()
    yield "quantised", torch.quantize_per_tensor(like, 0.1, 0, torch.qint8)
    yield "complex", torch.complex(like, like)
    yield "list", like.tolist()
    yield "nothing", None
    yield "larger", torch.zeros(9, 9)
