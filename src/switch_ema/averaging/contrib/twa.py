"""TWA: a trained average of snapshots (Li et al., 2023)."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

from switch_ema._checks import check_positive
from switch_ema.averaging._torch import buffers_of
from switch_ema.averaging.model.names import plain_name


def trained_average(
    model: nn.Module,
    snapshots: Sequence[Mapping[str, Tensor]],
    loss: Callable[[nn.Module, Any], Tensor],
    batches: Iterable[Any],
    *,
    lr: float,
    momentum: float = 0.9,
) -> dict[str, Tensor]:
    """Train the coefficients of an average of snapshots; return its parameters.

    Training starts at the mean of the snapshots and stays in the space they span: with
    an orthonormal basis of it as the columns of ``P`` and the model's gradient ``g``,
    one coefficient per snapshot is trained with the gradient ``P' g``. So few numbers
    can be trained on held-out data. All snapshots are in memory at once.

    Args:
        model: evaluates the average; its own weights and buffers are restored
            afterwards.
        snapshots: state dicts of one architecture, such as those of the last epochs;
            only parameters that require a gradient are averaged.
        loss: ``loss(model, batch)``.
        batches: one SGD step each.
        lr: the learning rate of the coefficients.
        momentum: the momentum of SGD.

    Returns:
        The parameters by plain name. Buffers are not averaged, so recalibrate batch
        norm.
    """
    check_positive("lr", lr)
    named = {
        plain_name(model, name): parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }
    points = torch.stack([_vector(named, snapshot) for snapshot in snapshots])
    start = points.mean(0)
    # Directions outside the span of the snapshots are rounding noise: drop them.
    _, sizes, basis = torch.linalg.svd(points, full_matrices=False)
    basis = basis[sizes > sizes[0] * 1e-6]
    coordinates = nn.Parameter(basis.new_zeros(len(basis)))
    optimizer = torch.optim.SGD([coordinates], lr=lr, momentum=momentum)
    with _restored(model):
        for batch in batches:
            _write(named, start + coordinates.detach() @ basis)
            # The loss need not use every parameter.
            gradients = torch.autograd.grad(
                loss(model, batch),
                list(named.values()),
                allow_unused=True,
                materialize_grads=True,
            )
            whole = torch.cat([gradient.flatten().to(basis) for gradient in gradients])
            coordinates.grad = basis @ whole
            optimizer.step()
        _write(named, start + coordinates.detach() @ basis)
        return {name: value.detach().clone() for name, value in named.items()}


@contextmanager
def _restored(model: nn.Module) -> Iterator[None]:
    """Restore what is averaged, and buffers, also if a forward pass replaces them."""
    averaged = [p for p in model.parameters() if p.requires_grad]
    parameters = [(p, p.detach().clone()) for p in averaged]
    buffers = [
        (buffers_of(module), name, buffer, buffer.detach().clone())
        for module in model.modules()
        for name, buffer in buffers_of(module).items()
        if buffer is not None
    ]
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, value in parameters:
                parameter.copy_(value)
            for owner, name, buffer, value in buffers:
                owner[name] = buffer
                buffer.copy_(value)


def _vector(named: Mapping[str, Tensor], snapshot: Mapping[str, Tensor]) -> Tensor:
    missing = [name for name in named if name not in snapshot]
    if missing:
        raise ValueError(f"a snapshot lacks {', '.join(missing[:5])}.")
    dtypes = [p.dtype for p in named.values()]
    dtype = reduce(torch.promote_types, dtypes, torch.float32)
    parts = [snapshot[n].to(p).flatten().to(dtype) for n, p in named.items()]
    return torch.cat(parts)


@torch.no_grad()
def _write(named: Mapping[str, Tensor], vector: Tensor) -> None:
    parts = torch.split(vector, [value.numel() for value in named.values()])
    for value, part in zip(named.values(), parts, strict=True):
        value.copy_(part.view_as(value))
