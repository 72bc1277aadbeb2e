"""Metrics against epochs, several tasks in one figure."""

from typing import TYPE_CHECKING

from switch_ema._lazy import lazy_names

if TYPE_CHECKING:
    from switch_ema.analysis.convergence.figure import Curve as Curve
    from switch_ema.analysis.convergence.figure import CurvePanel as CurvePanel
    from switch_ema.analysis.convergence.figure import (
        draw_convergence as draw_convergence,
    )

_HOMES = {"Curve": "figure", "CurvePanel": "figure", "draw_convergence": "figure"}

__all__ = [*_HOMES]
__getattr__ = lazy_names(__name__, _HOMES)
