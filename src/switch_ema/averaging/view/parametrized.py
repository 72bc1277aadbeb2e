"""Shows an average in a model whose parametrizations may be removed meanwhile.

``remove_parametrizations`` replaces a weight's originals by the computed weight. Inside
``averaged()`` that is a weight of the average, which a swap could not undo.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList, is_parametrized

from switch_ema.averaging.distributed.fsdp import local_part
from switch_ema.averaging.model.slots import Slot
from switch_ema.averaging.view.stage import Shown


class _Computed(NamedTuple):
    """A tensor of a module that is computed from others."""

    module: nn.Module
    name: str
    rule: ParametrizationList
    address: int | None
    """Address of its only original, None if there are several."""

    def put_back(self) -> None:
        """If the rule was removed, compute the weight from the live originals."""
        if is_parametrized(self.module, self.name):
            return
        weight: Tensor = getattr(self.module, self.name)
        # With leave_parametrized=False the original itself has become the weight.
        if self.address is None or local_part(weight).data_ptr() != self.address:
            weight.data = self.rule().detach().clone()


class Parametrized:
    """Shows an average, and removes it from weights computed in the meantime."""

    def __init__(self, shown: Shown, model: nn.Module, slots: Sequence[Slot]) -> None:
        self._shown, self._model = shown, model
        self._is_used = any("parametrizations." in slot.name for slot in slots)
        self._computed: list[_Computed] = []

    def swap_in(self) -> None:
        """Put the average into the model."""
        self._computed = _computed_tensors(self._model) if self._is_used else []
        self._shown.swap_in()

    @torch.no_grad()
    def swap_out(self) -> None:
        """Put the live weights back."""
        self._shown.swap_out()
        while self._computed:  # a loop that can resume here after a Ctrl-C
            self._computed[-1].put_back()
            self._computed.pop()


def _computed_tensors(model: nn.Module) -> list[_Computed]:
    found = []
    for module in model.modules():
        for name, rule in getattr(module, "parametrizations", {}).items():
            original = getattr(rule, "original", None)
            address = None if original is None else local_part(original).data_ptr()
            found.append(_Computed(module, name, rule, address))
    return found
