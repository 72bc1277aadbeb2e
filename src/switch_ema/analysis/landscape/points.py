"""Points of weight space, with weights made on demand."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from switch_ema.analysis.landscape.directions import Weights
from switch_ema.averaging.model.slots import Slot, all_slots


class Points:
    """The points ``centre + sum_k c_k * direction_k``, one for each row c.

    Args:
        model: defines the tensors, tied weights once.
        centre: a state dict with plain names; missing buffers are the model's.
        directions: steps by name; missing tensors stay at the centre.
        coefficients: one row per point, one column per direction.

    Raises:
        ValueError: names or shapes do not fit.
    """

    def __init__(
        self,
        model: nn.Module,
        centre: Weights,
        directions: Sequence[Weights],
        coefficients: Any,
    ) -> None:
        self.slots = all_slots(model)
        rows = np.asarray(coefficients, dtype=np.float64)
        if rows.ndim != 2 or rows.shape[1] != len(directions) or not len(rows):
            raise ValueError(
                f"coefficients must have a row per point and {len(directions)} columns,"
                f" one per direction, got shape {list(rows.shape)}."
            )
        self._rows = torch.from_numpy(rows)
        known = {name for slot in self.slots for name in slot.names}
        for name in {name for direction in directions for name in direction} - known:
            raise ValueError(f"directions must fit the model, but it has no {name}.")
        self._base = {slot.name: _centre_of(slot, centre) for slot in self.slots}
        self._steps: dict[str, list[tuple[int, Tensor]]] = {}
        for column, direction in enumerate(directions):
            for slot in self.slots:
                step = _find(slot, direction, f"direction {column}")
                # Tensors that do not move need no copy per point.
                if step is not None and step.any():
                    self._steps.setdefault(slot.name, []).append((column, step))

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def device(self) -> torch.device:
        """Device of the first tensor."""
        return self.slots[0].tensor.device

    def typical(self) -> int:
        """Return the row of the point at the median distance from the centre."""
        order = self._rows.norm(dim=1).argsort()
        return int(order[len(order) // 2])

    def moving_bytes(self) -> int:
        """Return the bytes per point of the tensors that differ between points."""
        return sum(self._base[name].nbytes for name in self._steps)

    def fixed(self) -> dict[str, Tensor]:
        """Copy the tensors shared by all points."""
        return {
            name: base.clone()
            for name, base in self._base.items()
            if name not in self._steps
        }

    def moving(self, rows: slice) -> dict[str, Tensor]:
        """Make the other tensors for some points, stacked in dimension 0."""
        result = {}
        for name, steps in self._steps.items():
            base = value = self._base[name]
            for column, step in steps:
                factors = self._rows[rows, column].to(step.dtype).to(base.device)
                value = value + factors.view(-1, *[1] * base.ndim) * step
            result[name] = value.to(base.dtype)
        return result

    def load(self, row: int) -> None:
        """Write one point into the model."""
        moving = self.moving(slice(row, row + 1))
        for slot in self.slots:
            new = moving.get(slot.name)
            slot.tensor.copy_(self._base[slot.name] if new is None else new[0])


def _centre_of(slot: Slot, centre: Weights) -> Tensor:
    found = _find(slot, centre, "centre")
    if found is None:
        if not slot.is_buffer:
            raise ValueError(f"centre must have all parameters, missing: {slot.name}.")
        found = slot.tensor
    # Copy: the centre may share memory with the model, which is overwritten.
    return found.detach().to(slot.tensor.dtype).clone()


def _find(slot: Slot, weights: Weights, what: str) -> Tensor | None:
    """Look up a tensor under any of its names."""
    for name in slot.names:
        if name in weights:
            found = weights[name].detach().to(slot.tensor.device)
            if found.shape != slot.tensor.shape:
                raise ValueError(
                    f"{what} must fit the model: {name} is {list(found.shape)}, "
                    f"expected {list(slot.tensor.shape)}."
                )
            return found
    return None
