"""What is measured of a model: numbers that are means over batches."""

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
    """Return the length of the first tensor in a batch of one of the usual shapes.

    >>> batch_size((torch.zeros(5, 2), torch.zeros(5)))
    5.0
    """
    while not isinstance(batch, Tensor):
        parts = list(batch.values()) if isinstance(batch, Mapping) else batch
        if not isinstance(parts, (list, tuple)) or not parts:
            raise ValueError(
                f"a batch must hold tensors, got {type(batch).__name__}; "
                "for others give the probe a weight."
            )
        batch = parts[0]
    return float(len(batch))


@dataclass(frozen=True)
class Probe:
    """What is measured at each point: means over batches."""

    measure: Measure
    """``measure(model, batch)`` gives means over the batch by name, so that loss and
    accuracy can come from one forward pass. The model is in evaluation mode."""
    batches: Sequence[Any]
    """On the model's device."""
    weight: Callable[[Any], float] = batch_size
    """How much a batch counts in the mean over all of them."""


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
    """Take the means over the batches of all probes.

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
            raise ValueError("a probe must have batches that count, got none.")
        found: dict[str, list[Tensor]] = {}
        for batch in probe.batches:
            for name, value in run(probe, batch).items():
                found.setdefault(name, []).append(torch.as_tensor(value))
        means = {}
        for name, values in found.items():
            if any(value.shape != shape for value in values):
                raise ValueError(f"measure must give single numbers, {name} is not.")
            # One transfer from the device, after all batches.
            column = torch.stack(values).cpu().double().numpy()
            means[name] = (weights / weights.sum()) @ column
        result = merge(result, means)
    return result


def merge(first: dict[str, Floats], second: dict[str, Floats]) -> dict[str, Floats]:
    """Join what different probes have measured.

    Raises:
        ValueError: two probes have measured the same.
    """
    for name in sorted(first.keys() & second.keys()):
        raise ValueError(f"probes must measure different things, not {name} twice.")
    return first | second
