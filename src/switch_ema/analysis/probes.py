"""Probes: measurements of a model, as means over batches."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from switch_ema.analysis.landscape.directions import Floats

Measure = Callable[[nn.Module, Any], Mapping[str, Union[Tensor, float]]]


def batch_size(batch: Any) -> float:
    """Return the length of the first tensor in a batch of a common form.

    >>> batch_size((torch.zeros(5, 2), torch.zeros(5)))
    5.0
    """
    while not isinstance(batch, Tensor):
        parts = list(batch.values()) if isinstance(batch, Mapping) else batch
        if not isinstance(parts, (list, tuple)) or not parts:
            raise ValueError(
                f"a batch must contain tensors, got {type(batch).__name__}; "
                "pass the probe a weight for other batches."
            )
        batch = parts[0]
    return float(len(batch))


@dataclass(frozen=True)
class Probe:
    """A measurement at each point, as means over batches."""

    measure: Measure
    """``measure(model, batch)`` returns means over the batch by name, so loss and
    accuracy can share a forward pass. The model is in evaluation mode."""
    batches: Sequence[Any]
    """On the model's device."""
    weight: Callable[[Any], float] = batch_size
    """Weight of a batch in the mean."""


def classification(model: nn.Module, batch: Any) -> dict[str, Tensor]:
    """Measure cross-entropy and accuracy in percent on a batch ``(inputs, labels)``."""
    inputs, labels = batch
    outputs = model(inputs)
    right = (outputs.argmax(1) == labels).float().mean()
    return {"loss": cross_entropy(outputs, labels), "accuracy": 100 * right}


def run_probes(
    probes: Sequence[Probe],
    run: Callable[[Probe, Any], Mapping[str, Tensor | float]],
    shape: tuple[int, ...],
) -> dict[str, Floats]:
    """Average all probes over their batches.

    Args:
        probes: what to measure.
        run: measures one batch.
        shape: of each measured value: () for one point, (points,) for several.

    Raises:
        ValueError: values are not one number per point, or names clash.
    """
    result: dict[str, Floats] = {}
    for probe in probes:
        weights = np.array([probe.weight(batch) for batch in probe.batches])
        if not weights.size or weights.min() < 0 or not weights.sum() > 0:
            raise ValueError("a probe must have batches of positive weight, got none.")
        found: dict[str, list[Tensor]] = {}
        for batch in probe.batches:
            for name, value in run(probe, batch).items():
                found.setdefault(name, []).append(torch.as_tensor(value))
        means = {}
        for name, values in found.items():
            if any(value.shape != shape for value in values):
                raise ValueError(
                    f"measure must return single numbers, but {name} is not one."
                )
            # A single transfer from the device, after all batches.
            column = torch.stack(values).cpu().double().numpy()
            means[name] = (weights / weights.sum()) @ column
        result = merge(result, means)
    return result


def merge(first: dict[str, Floats], second: dict[str, Floats]) -> dict[str, Floats]:
    """Merge the results of different probes.

    Raises:
        ValueError: two probes use the same name.
    """
    for name in sorted(first.keys() & second.keys()):
        raise ValueError(f"probes must use distinct names, but {name} occurs twice.")
    return first | second
