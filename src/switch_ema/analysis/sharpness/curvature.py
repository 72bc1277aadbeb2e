"""The loss as a function of the weights: its values, gradients and Hessian.

Nothing here writes to the model: other weights are swapped in functionally for one
call, so an error leaves nothing to restore.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from switch_ema.analysis.probes import batch_size

Loss = Callable[[nn.Module, Any], Tensor]
"""Mean loss of a model on a batch, with the signature of a bench task's loss."""


class LossSurface:
    """The mean loss over batches as a function of a model's trainable parameters.

    With the weights ``c`` of the batches::

        L(w) = sum_b c_b * loss(model with parameters w, batch b) / sum_b c_b

    so batches of unequal size give the loss of the whole set. The model is in
    evaluation mode, and a random loss draws the same numbers at every point. The
    model's parameters, buffers, gradients and modes, and the random state, stay
    unchanged.

    Points and gradients are flat vectors: the parameters that require gradients, in
    the model's order, tied ones once. The default point is the model's current weights.

    Args:
        model: At least one parameter must require gradients.
        loss: Returns the mean loss of the given model on a batch.
        batches: Read once and kept, on the device where the loss needs them.
        weight: Weight of a batch in the mean; its number of examples by default.

    Examples:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> surface = LossSurface(
        ...     model, lambda model, x: model(x).square().mean() / 2, [torch.ones(4, 1)]
        ... )
        >>> surface.value(torch.tensor([3.0]))
        4.5
        >>> surface.hessian_product(torch.tensor([1.0]))
        tensor([1.])
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        batches: Iterable[Any],
        *,
        weight: Callable[[Any], float] = batch_size,
    ) -> None:
        self._bound = _BoundLoss(model, loss)
        self._parameters = {
            name: parameter
            for name, parameter in self._bound.named_parameters()
            if parameter.requires_grad
        }
        if not self._parameters:
            raise ValueError(
                "model must have parameters that require gradients, got none."
            )
        self._batches = tuple(batches)
        self._shares = _shares([weight(batch) for batch in self._batches])
        self.shapes = tuple(p.shape for p in self._parameters.values())
        self._sizes = [shape.numel() for shape in self.shapes]
        self.size = sum(self._sizes)
        self.dtype = reduce(
            torch.promote_types, (p.dtype for p in self._parameters.values())
        )
        self.device = next(iter(self._parameters.values())).device

    @property
    def weights(self) -> Tensor:
        """A copy of the model's current weights, as one vector."""
        return self._flatten([p.detach() for p in self._parameters.values()])

    def pieces(self, vector: Tensor) -> list[Tensor]:
        """Split a vector into views with the parameters' shapes."""
        if vector.shape != (self.size,):
            raise ValueError(
                f"vector must have the shape ({self.size},), got {tuple(vector.shape)}."
            )
        parts = torch.split(vector, self._sizes)
        return [v.view(shape) for v, shape in zip(parts, self.shapes, strict=True)]

    def value(self, at: Tensor | None = None) -> float:
        """Return the loss at a point."""
        with torch.no_grad():
            return math.fsum(s * loss.item() for s, loss, _ in self._passes(at))

    @torch.enable_grad()
    def gradient(self, at: Tensor | None = None) -> tuple[float, Tensor]:
        """Return the loss and its gradient at a point."""
        value, total = 0.0, torch.zeros_like(self.weights)
        for share, loss, point in self._passes(at):
            value += share * loss.item()
            total += share * self._flatten(_slopes(loss, point))
        return value, total

    @torch.enable_grad()
    def hessian_product(self, vectors: Tensor, at: Tensor | None = None) -> Tensor:
        """Multiply the Hessian at a point by a vector, or by each column of a matrix.

        Uses double backward, which more operations support than any alternative. The
        columns of a matrix share the first backward pass.
        """
        if vectors.ndim not in (1, 2) or len(vectors) != self.size:
            raise ValueError(
                f"vectors must have {self.size} rows, got shape {tuple(vectors.shape)}."
            )
        columns = vectors.detach().reshape(self.size, -1)
        total = torch.zeros_like(columns)
        for share, loss, point in self._passes(at):
            slope = self._flatten(_slopes(loss, point, create_graph=True))
            if not slope.requires_grad:  # the loss is linear in all parameters
                continue
            for index, column in enumerate(columns.unbind(1)):
                bend = torch.autograd.grad(
                    slope,
                    point,
                    column.to(slope),
                    retain_graph=True,
                    materialize_grads=True,
                )
                total[:, index] += share * self._flatten(bend)
        return total.view(vectors.shape)

    def _passes(
        self, at: Tensor | None
    ) -> Iterator[tuple[float, Tensor, list[Tensor]]]:
        """Yield the weight, loss and parameters of each batch."""
        originals = self._parameters.values()
        parts = list(originals) if at is None else self.pieces(at)
        point = [
            part.detach().to(p.device, p.dtype).requires_grad_()
            for part, p in zip(parts, originals, strict=True)
        ]
        weights = dict(zip(self._parameters, point, strict=True))
        for share, batch in zip(self._shares, self._batches, strict=True):
            # Some layers write buffers even in evaluation mode.
            buffers = {name: b.clone() for name, b in self._bound.named_buffers()}
            with _measuring(self._bound.model):
                loss = functional_call(self._bound, {**weights, **buffers}, (batch,))
            if not isinstance(loss, Tensor) or loss.numel() != 1:
                raise ValueError(f"loss must return one number, got {loss!r}.")
            yield share, loss.reshape(()), point

    def _flatten(self, tensors: Iterable[Tensor]) -> Tensor:
        return torch.cat([t.to(self.device, self.dtype).reshape(-1) for t in tensors])


def hessian_matrix(surface: LossSurface) -> Tensor:
    """Return the whole Hessian; for small models, as it has ``size**2`` entries."""
    eye = torch.eye(surface.size, dtype=surface.dtype, device=surface.device)
    matrix = surface.hessian_product(eye)
    return (matrix + matrix.T) / 2


class _BoundLoss(nn.Module):
    """The loss as a module around the model, as functional_call requires."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model = model
        self._loss = loss

    def forward(self, batch: Any) -> Tensor:
        return self._loss(self.model, batch)


def _shares(weights: list[float]) -> tuple[float, ...]:
    if not weights:
        raise ValueError("batches must have at least one batch, got none.")
    for weight in weights:
        if not 0 < weight < math.inf:
            raise ValueError(f"weight must be above 0 and finite, got {weight!r}.")
    total = math.fsum(weights)
    return tuple(weight / total for weight in weights)


def _slopes(
    loss: Tensor, point: list[Tensor], *, create_graph: bool = False
) -> list[Tensor]:
    slopes: Any = [None]
    if loss.requires_grad:
        slopes = torch.autograd.grad(
            loss, point, create_graph=create_graph, allow_unused=True
        )
    if all(slope is None for slope in slopes):
        raise ValueError(
            "loss must depend on the parameters of the model that it is given, and be "
            "differentiable."
        )
    pairs = zip(slopes, point, strict=True)
    return [torch.zeros_like(p) if slope is None else slope for slope, p in pairs]


@contextmanager
def _measuring(model: nn.Module) -> Iterator[None]:
    """Enter evaluation mode with fixed random numbers; restore everything on exit."""
    modules = list(model.modules())
    modes = [module.training for module in modules]
    devices = {p.device.index for p in model.parameters() if p.is_cuda}
    with ExitStack() as stack:
        # Fused attention has no double backward, and cuDNN's recurrent layers have no
        # backward in evaluation mode.
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        if devices and any(isinstance(module, nn.RNNBase) for module in modules):
            stack.enter_context(torch.backends.cudnn.flags(enabled=False))
        stack.enter_context(torch.random.fork_rng(devices=devices))
        torch.default_generator.manual_seed(0)
        for index in devices:
            torch.cuda.default_generators[index].manual_seed(0)
        try:
            model.eval()
            yield
        finally:
            for module, mode in zip(modules, modes, strict=True):
                module.training = mode
