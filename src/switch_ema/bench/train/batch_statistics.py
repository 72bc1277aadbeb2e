"""Batch norm with the statistics of all workers' examples, on CPUs.

torch's SyncBatchNorm runs on GPUs only.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import batch_norm
from torch.overrides import TorchFunctionMode

from switch_ema.bench.sharding import Shard


class SynchronisedStatistics(TorchFunctionMode):
    """Inside this context, batch norm in training mode sees the whole batch.

    All workers must run the same layers in the same order.
    """

    def __init__(self, shard: Shard) -> None:
        super().__init__()
        self._shard = shard

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Replace torch's batch norm."""
        call = self._normalise if func is batch_norm else func
        return call(*args, **kwargs or {})

    def _normalise(
        self,
        input: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        if not training:
            return batch_norm(
                input, running_mean, running_var, weight, bias, False, momentum, eps
            )
        dims = [0, *range(2, input.dim())]
        shape = [1, -1] + [1] * (input.dim() - 2)
        x = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
        own = x.new_tensor([x.numel() / x.shape[1]])
        total = self._shard.sum(torch.cat([x.sum(dims), own]))
        count, mean = total[-1], total[:-1] / total[-1]
        centred = x - mean.view(shape)
        variance = self._shard.sum(centred.square().sum(dims)) / count
        if running_mean is not None and running_var is not None:
            with torch.no_grad():
                unbiased = variance * count / (count - 1)
                running_mean.lerp_(mean.to(running_mean.dtype), momentum)
                running_var.lerp_(unbiased.to(running_var.dtype), momentum)
        found = centred * (variance + eps).rsqrt().view(shape)
        if weight is not None:
            found = found * weight.view(shape)
        if bias is not None:
            found = found + bias.view(shape)
        return found.to(input.dtype)
