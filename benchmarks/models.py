"""Models to average: many small tensors, few large ones, tied weights.

Only their tensors matter: no forward passes, no downloads.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn


def resnet50() -> nn.Module:
    return _timm("resnet50")


def deit_s() -> nn.Module:
    return _timm("deit_small_patch16_224")


def efficientnet_b0() -> nn.Module:
    return _timm("efficientnet_b0")


def gpt(
    width: int = 768, vocabulary: int = 50257, context: int = 1024, layers: int = 12
) -> nn.Module:
    """GPT-2 small by shape: 124 M parameters, the output tied to the embedding."""
    model = nn.Module()
    model.tokens = nn.Embedding(vocabulary, width)
    model.positions = nn.Embedding(context, width)
    model.blocks = nn.ModuleList(
        nn.TransformerEncoderLayer(width, nhead=12, dim_feedforward=4 * width)
        for _ in range(layers)
    )
    model.norm = nn.LayerNorm(width)
    model.head = nn.Linear(width, vocabulary, bias=False)
    model.head.weight = model.tokens.weight
    return model


def many_small() -> nn.Module:
    """2,000 tensors of 64 elements: measures the cost per tensor."""
    return nn.ParameterList(nn.Parameter(torch.randn(64)) for _ in range(2000))


def gpt_tiny() -> nn.Module:
    """The same at minimum size."""
    return gpt(width=12, vocabulary=32, context=8, layers=1)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "resnet50": resnet50,
    "deit_s": deit_s,
    "efficientnet_b0": efficientnet_b0,
    "gpt": gpt,
    "gpt_tiny": gpt_tiny,
    "many_small": many_small,
}


def build(name: str) -> nn.Module:
    """Build a model with the same random weights in every run."""
    torch.manual_seed(0)
    return MODELS[name]()


def tensors(model: nn.Module) -> list[Tensor]:
    """List parameters and buffers, tied weights once."""
    return [*model.parameters(), *model.buffers()]


def averaged_elements(model: nn.Module) -> int:
    """Count the elements to average: floating-point tensors, including buffers."""
    return sum(t.numel() for t in tensors(model) if t.is_floating_point())


def size(model: nn.Module) -> int:
    """Count the bytes of all tensors."""
    return sum(t.numel() * t.element_size() for t in tensors(model))


def _timm(name: str) -> nn.Module:
    import timm

    return timm.create_model(name)
