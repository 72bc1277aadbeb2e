"""Decision boundaries in the plane: width, roughness, length, and figures."""

from typing import TYPE_CHECKING

from switch_ema._lazy import lazy_names

if TYPE_CHECKING:
    from switch_ema.analysis.boundary.figure import (
        draw_boundaries as draw_boundaries,
    )
    from switch_ema.analysis.boundary.figure import (
        draw_measures as draw_measures,
    )
    from switch_ema.analysis.boundary.measures import (
        Boundary as Boundary,
    )
    from switch_ema.analysis.boundary.measures import (
        PlaneGrid as PlaneGrid,
    )
    from switch_ema.analysis.boundary.measures import (
        accuracy as accuracy,
    )
    from switch_ema.analysis.boundary.measures import (
        measure_boundaries as measure_boundaries,
    )
    from switch_ema.analysis.boundary.summary import (
        MEASURES as MEASURES,
    )
    from switch_ema.analysis.boundary.summary import (
        Measured as Measured,
    )
    from switch_ema.analysis.boundary.summary import (
        MethodBoundaries as MethodBoundaries,
    )
    from switch_ema.analysis.boundary.summary import (
        summarize as summarize,
    )

_HOMES = {
    "Boundary": "measures",
    "PlaneGrid": "measures",
    "accuracy": "measures",
    "measure_boundaries": "measures",
    "MEASURES": "summary",
    "Measured": "summary",
    "MethodBoundaries": "summary",
    "summarize": "summary",
    "draw_boundaries": "figure",
    "draw_measures": "figure",
}

__all__ = [*_HOMES]
__getattr__ = lazy_names(__name__, _HOMES)
