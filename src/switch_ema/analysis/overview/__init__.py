"""One line per comparison, on a common scale."""

from typing import TYPE_CHECKING

from switch_ema._lazy import lazy_names

if TYPE_CHECKING:
    from switch_ema.analysis.overview.figure import OverviewLine as OverviewLine
    from switch_ema.analysis.overview.figure import draw_overview as draw_overview

_HOMES = {"OverviewLine": "figure", "draw_overview": "figure"}

__all__ = [*_HOMES]
__getattr__ = lazy_names(__name__, _HOMES)
