"""Stacks many copies of a small network and computes them as one.

A small network's step is mostly overhead of Python and kernel launches, which a stack
pays once for all its networks.
"""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MethodType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import pad
from torch.optim import Optimizer


class Stacked(nn.Module):
    """Networks of one architecture with their tensors stacked along a new dimension.

    Parameters and buffers have the network as first dimension and keep their names,
    with ``_`` for each dot.

    >>> two = Stacked([nn.Linear(3, 1), nn.Linear(3, 1)])
    >>> two(torch.ones(2, 5, 3)).shape
    torch.Size([2, 5, 1])
    """

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        parameters, buffers = stack_module_state(list(networks))
        for name, values in parameters.items():
            self.register_parameter(_flat(name), nn.Parameter(values.detach()))
        for name, values in buffers.items():
            self.register_buffer(_flat(name), values.detach())
        self._parameter_names, self._buffer_names = tuple(parameters), tuple(buffers)
        # In lists, so that torch does not register them as submodules.
        self._skeleton = [_with_fast_layers(copy.deepcopy(networks[0]).to("meta"))]
        self._single = [copy.deepcopy(networks[0])]
        self._layers = _layers_of_perceptron(networks[0])

    def forward(self, x: Tensor) -> Tensor:
        """Apply each network to its slice of ``x``, or all to the same 2-D ``x``.

        Args:
            x: (networks, examples, features), or (examples, features) for all.
        """
        own = 0 if x.dim() == 3 else None
        call = torch.vmap(self._call, in_dims=(0, 0, own), randomness="different")
        return cast(Tensor, call(*self._tensors(), (x,)))

    @property
    def is_perceptron(self) -> bool:
        """Whether :meth:`outputs` computes one batched product per layer."""
        return self._layers is not None

    def outputs(self, x: Tensor) -> Tensor:
        """Return the outputs of all networks, each for its own slice of ``x``.

        Perceptrons are computed layer by layer as batched matrix products, with half
        the overhead of vmap.

        Args:
            x: (networks, examples, ...).
        """
        if self._layers is None:
            call = torch.vmap(self._call, randomness="different")
            return cast(Tensor, call(*self._tensors(), (x,)))
        for name, layer in self._layers:
            if isinstance(layer, nn.Linear):
                weight = getattr(self, _flat(f"{name}.weight"))
                bias = getattr(self, _flat(f"{name}.bias")).unsqueeze(1)
                x = torch.baddbmm(bias, x, weight.transpose(1, 2))
            else:
                x = x.flatten(2) if isinstance(layer, nn.Flatten) else torch.relu(x)
        return x

    def each(self, function: Callable[[Any, Any], Tensor], argument: Any) -> Tensor:
        """Compute ``function(network, argument)`` for all networks at once.

        Args:
            function: may only call the network, not use it as a module.
            argument: a tensor, or nested tensors, with the network as first dimension;
                each network gets its slice.
        """

        def one(
            parameters: dict[str, Tensor], buffers: dict[str, Tensor], own: Any
        ) -> Tensor:
            def network(*inputs: Any) -> Any:
                return self._call(parameters, buffers, inputs)

            return function(network, own)

        run = torch.vmap(one, randomness="different")
        return run(*self._tensors(), argument)

    def alone(self, index: int) -> nn.Module:
        """Return one network as an ordinary module that shares the stack's memory.

        Every call returns the same module, pointed at different tensors.
        """
        network = self._single[0].train(self.training)
        tensors = dict(network.named_parameters()) | dict(network.named_buffers())
        for name in (*self._parameter_names, *self._buffer_names):
            tensors[name].data = getattr(self, _flat(name)).data[index]
        return network

    def state_of(self, state: Mapping[str, Tensor], index: int) -> dict[str, Tensor]:
        """Return one network's part of a stack's state dict."""
        names = (*self._parameter_names, *self._buffer_names)
        found = {name: state.get(_flat(name)) for name in names}
        return {name: t[index] for name, t in found.items() if t is not None}

    def train(self, mode: bool = True) -> "Stacked":
        """Set the mode of all networks."""
        self._skeleton[0].train(mode)
        super().train(mode)
        return self

    def make_optimizer(self, make: Callable[[nn.Module], Optimizer]) -> Optimizer:
        """Create an optimizer for one network, then give it the stack's parameters.

        Parameter groups may depend on names and numbers of dimensions; this way they
        are those of a network trained alone. The optimizer must be element-wise and
        create its state at the first step.
        """
        network = self._single[0]
        optimizer = make(network)
        stacked = {
            id(parameter): getattr(self, _flat(name))
            for name, parameter in network.named_parameters()
        }
        for group in optimizer.param_groups:
            group["params"] = [stacked[id(p)] for p in group["params"]]
        return optimizer

    def _tensors(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        parameters, buffers = (
            {name: getattr(self, _flat(name)) for name in names}
            for names in (self._parameter_names, self._buffer_names)
        )
        return parameters, buffers

    def _call(
        self,
        parameters: dict[str, Tensor],
        buffers: dict[str, Tensor],
        inputs: tuple[Any, ...],
    ) -> Any:
        # vmap does not support the fused attention kernels.
        with sdpa_kernel(SDPBackend.MATH):
            return functional_call(self._skeleton[0], (parameters, buffers), inputs)


def _layers_of_perceptron(network: nn.Module) -> list[tuple[str, nn.Module]] | None:
    """List the layers of a multi-layer perceptron by name; None for other networks."""
    found: list[tuple[str, nn.Module]] = []
    for name, layer in network.named_modules():
        has_bias = any(
            key == "bias" for key, _ in layer.named_parameters(recurse=False)
        )
        if type(layer) in (nn.ReLU, nn.Flatten) or (
            type(layer) is nn.Linear and has_bias
        ):
            found.append((name, layer))
        elif type(layer) is not nn.Sequential:
            return None
    return found


_FEW_CHANNELS = 8
"""With fewer channels, a matrix product per kernel position is too small."""


def _with_fast_layers(network: nn.Module) -> nn.Module:
    """Replace the forward of layers that are slow in a stack by an equivalent one."""
    for layer in network.modules():
        if type(layer) is nn.Conv1d and _is_plain(layer):
            layer.forward = MethodType(_convolve, layer)  # type: ignore[method-assign]
    return network


def _is_plain(layer: nn.Conv1d) -> bool:
    return (
        layer.groups == 1
        and layer.dilation == (1,)
        and layer.padding_mode == "zeros"
        and not isinstance(layer.padding, str)
    )


def _convolve(layer: nn.Conv1d, x: Tensor) -> Tensor:
    """Convolve as a sum of matrix products, one per kernel position.

    vmap turns stacked convolutions into one slow grouped convolution, but stacked
    matrix products into one batched product. Takes (examples, channels, length).
    """
    padding, stride = cast(tuple[int], layer.padding)[0], layer.stride[0]
    outputs, channels, width = layer.weight.shape
    x = pad(x, (padding, padding)).transpose(1, 2)
    length = (x.shape[1] - width) // stride + 1
    bias: Tensor | float = 0.0 if layer.bias is None else layer.bias
    if channels < _FEW_CHANNELS:  # one product for all positions
        windows = x.unfold(1, width, stride).reshape(-1, channels * width)
        total = windows @ layer.weight.flatten(1).T + bias
    else:
        total = cast(Tensor, bias)
        for offset in range(width):
            seen = x[:, offset : offset + stride * (length - 1) + 1 : stride]
            total = total + seen.reshape(-1, channels) @ layer.weight[:, :, offset].T
    return total.view(-1, length, outputs).transpose(1, 2)


@torch.no_grad()
def clip_each_(parameters: Iterable[nn.Parameter], largest: float) -> None:
    """Clip the gradient norm of each network separately, as if it trained alone."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if gradients:
        squares = [gradient.flatten(1).square().sum(1) for gradient in gradients]
        norms = torch.stack(squares).sum(0).sqrt()
        factors = (largest / (norms + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(factors.view(-1, *[1] * (gradient.ndim - 1)))


def _flat(name: str) -> str:
    return name.replace(".", "_")
