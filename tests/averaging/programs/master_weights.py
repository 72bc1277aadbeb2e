"""Training in half precision by hand: the optimizer has float32 copies of the weights.

As in the fp16 loops of Megatron, DeepSpeed and apex: gradients go from the model to
the copies, the optimizer steps those, and they are rounded into the model.
"""

import torch
from torch import nn


class Training:
    """A model in bfloat16, its float32 weights, and the optimizer of these."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
        self.model.bfloat16()
        self.masters = nn.ParameterList(p.float() for p in self.model.parameters())
        self.optimizer = torch.optim.SGD(self.masters, lr=0.05)
        self._generator = torch.Generator().manual_seed(1)

    def step(self) -> None:
        x = torch.randn(16, 4, generator=self._generator).bfloat16()
        (self.model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        for half, master in zip(self.model.parameters(), self.masters, strict=True):
            master.grad = half.grad.float()
            half.grad = None
        self.optimizer.step()
        self.write_model()

    @torch.no_grad()
    def write_model(self) -> None:
        for half, master in zip(self.model.parameters(), self.masters, strict=True):
            half.copy_(master)
