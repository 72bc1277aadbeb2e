"""Metrics that several tasks share."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from switch_ema.bench.task import Metric

ACCURACY = Metric(name="accuracy", higher_is_better=True, unit="%")
NLL = Metric(name="nll", higher_is_better=False)


def predict(model: nn.Module, batches: Iterable[Tensor]) -> Tensor:
    """Return the outputs of all batches, on the CPU."""
    device = next(model.parameters()).device
    return torch.cat([model(batch.to(device)).float().cpu() for batch in batches])


def classification(outputs: Tensor, labels: Tensor) -> dict[str, float]:
    """Measure accuracy in percent and the mean negative log-likelihood."""
    right = (outputs.argmax(1) == labels).double().mean().item()
    return {"accuracy": 100 * right, "nll": cross_entropy(outputs, labels).item()}
