"""Many copies of a small network, computed as one."""

import copy
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state


class Stacked(nn.Module):
    """Networks of one architecture, whose weights are stacked along a new dimension.

    For tiny networks the time of a step is overhead, which is then paid once for all.

    >>> two = Stacked([nn.Linear(3, 1), nn.Linear(3, 1)])
    >>> two(torch.ones(2, 5, 3)).shape
    torch.Size([2, 5, 1])
    """

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        weights, buffers = stack_module_state(list(networks))
        if buffers:
            raise ValueError("networks with buffers cannot be stacked.")
        self._names = tuple(weights)
        for name in self._names:
            values = weights[name].detach()
            self.register_parameter(_flat(name), nn.Parameter(values))
        # In a list, so that the skeleton's weights are not taken for the model's.
        self._skeleton = [copy.deepcopy(networks[0]).to("meta")]

    def forward(self, x: Tensor) -> Tensor:
        """Give each network its own slice of ``x``, or all of it if it is not sliced.

        Args:
            x: (networks, examples, features), or (examples, features) for all.
        """
        weights = {name: getattr(self, _flat(name)) for name in self._names}
        own = 0 if x.dim() == 3 else None
        return torch.vmap(self._one, in_dims=(0, own))(weights, x)

    def _one(self, weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return cast(Tensor, functional_call(self._skeleton[0], weights, (x,)))


def _flat(name: str) -> str:
    return name.replace(".", "_")
