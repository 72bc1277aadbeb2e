"""Stochastic depth: blocks that are left out at random in training."""

from torch import Tensor, nn


class DropPath(nn.Module):
    """Leave a residual branch out for a random part of the examples.

    In training ``y = x * m / (1 - drop_prob)``, where ``m`` is 0 with probability
    ``drop_prob`` and else 1, drawn once per example; so the mean stays. In evaluation
    ``y = x`` (Huang et al., 2016).

    Args:
        drop_prob: In [0, 1).
    """

    def __init__(self, drop_prob: float) -> None:
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, x: Tensor) -> Tensor:
        """Drop whole examples of ``x`` and scale the rest."""
        if not self.training or self.drop_prob == 0:
            return x
        keep = 1 - self.drop_prob
        mask = x.new_empty((len(x), *[1] * (x.dim() - 1))).bernoulli_(keep)
        return x * mask / keep


def rising_rates(most: float, blocks: int) -> list[float]:
    """Return one rate per block, in even steps from 0 to ``most``.

    >>> rising_rates(0.2, 3)
    [0.0, 0.1, 0.2]
    """
    return [most * block / max(blocks - 1, 1) for block in range(blocks)]
