"""How steps are computed: autocast, TF32, memory format, compiling."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate.utils import recursively_apply
from torch import Tensor, nn

from switch_ema.bench.errors import UsageError
from switch_ema.bench.recipe import Recipe


def resolved_precision(precision: str, device: str | None) -> str:
    """Return the autocast of a training on this machine: no, bf16 or fp16.

    Args:
        precision: as in a recipe; auto is bf16 on a GPU that computes in it.
        device: cpu or cuda; None for a GPU if there is one.
    """
    if precision != "auto":
        return precision
    has_gpu = device != "cpu" and torch.cuda.is_available()
    # Older GPUs emulate it, slower than float32.
    fast = has_gpu and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bf16" if fast else "no"


def describe_precision(recipe: Recipe, precision: str) -> str:
    """Describe what differs from eager float32; empty if nothing does.

    >>> describe_precision(Recipe(compile=True, precision="auto"), "bf16")
    'autocast to bf16, compiled'
    """
    parts = {
        f"autocast to {precision}": precision != "no",
        "TF32": recipe.tf32,
        "channels_last": recipe.channels_last,
        "compiled": recipe.compile,
    }
    return ", ".join(name for name, is_on in parts.items() if is_on)


def check_same_precision(found: str, stored: str | None) -> None:
    """Refuse to mix precisions in one run, where GPUs differ and it is chosen by them.

    Args:
        found: description of this training's precision.
        stored: that of the finished trainings of the task; None if there are none.
    """
    if stored not in (None, found):
        raise UsageError(
            f"the precision would be {found or 'float32'} here, but finished trainings "
            f"of this run have {stored or 'float32'}; continue on the same kind of "
            "device, or start a new run with --precision no, bf16 or fp16."
        )


@contextmanager
def using_tf32(is_on: bool) -> Iterator[None]:
    """Let GPUs multiply float32 matrices in TF32 inside the context; no-op on CPUs."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = before or is_on
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def to_channels_last(batch: Any) -> Any:
    """Return a batch with its images, tensors of four dimensions, in channels_last."""
    return recursively_apply(
        lambda tensor: tensor.contiguous(memory_format=torch.channels_last),
        batch,
        test_type=lambda value: isinstance(value, Tensor) and value.ndim == 4,
    )


@torch.no_grad()
def store_channels_last(model: nn.Module) -> None:
    """Store the weights of convolutions of images in channels_last, in place.

    Not ``model.to``, which fails for weights of five dimensions.
    """
    for parameter in model.parameters():
        if parameter.ndim == 4:
            parameter.data = parameter.contiguous(memory_format=torch.channels_last)
