"""Gains of methods against the training loss that they end with."""

from typing import TYPE_CHECKING

from switch_ema._lazy import lazy_names

if TYPE_CHECKING:
    from switch_ema.analysis.mechanism.figure import FittedMethod as FittedMethod
    from switch_ema.analysis.mechanism.figure import MechanismPanel as MechanismPanel
    from switch_ema.analysis.mechanism.figure import draw_mechanism as draw_mechanism

_HOMES = {
    "FittedMethod": "figure",
    "MechanismPanel": "figure",
    "draw_mechanism": "figure",
}

__all__ = [*_HOMES]
__getattr__ = lazy_names(__name__, _HOMES)
