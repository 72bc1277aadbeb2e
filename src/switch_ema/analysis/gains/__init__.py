"""Differences from a baseline with intervals, several tasks in one figure."""

from typing import TYPE_CHECKING

from switch_ema._lazy import lazy_names

if TYPE_CHECKING:
    from switch_ema.analysis.gains.figure import Gain as Gain
    from switch_ema.analysis.gains.figure import GainPanel as GainPanel
    from switch_ema.analysis.gains.figure import draw_gains as draw_gains

_HOMES = {"Gain": "figure", "GainPanel": "figure", "draw_gains": "figure"}

__all__ = [*_HOMES]
__getattr__ = lazy_names(__name__, _HOMES)
