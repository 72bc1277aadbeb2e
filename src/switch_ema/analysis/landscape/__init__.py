"""Loss landscapes: directions, lines and planes through the weights, and figures."""

from typing import TYPE_CHECKING

from switch_ema._lazy import lazy_names

if TYPE_CHECKING:
    from switch_ema.analysis.landscape.directions import (
        PrincipalDirections as PrincipalDirections,
    )
    from switch_ema.analysis.landscape.directions import (
        explained_share as explained_share,
    )
    from switch_ema.analysis.landscape.directions import (
        line_between as line_between,
    )
    from switch_ema.analysis.landscape.directions import (
        parameters_of as parameters_of,
    )
    from switch_ema.analysis.landscape.directions import (
        principal_directions as principal_directions,
    )
    from switch_ema.analysis.landscape.directions import (
        project as project,
    )
    from switch_ema.analysis.landscape.directions import (
        random_directions as random_directions,
    )
    from switch_ema.analysis.landscape.evaluation import (
        Evaluation as Evaluation,
    )
    from switch_ema.analysis.landscape.evaluation import (
        evaluate_points as evaluate_points,
    )
    from switch_ema.analysis.landscape.figure import (
        caption as caption,
    )
    from switch_ema.analysis.landscape.figure import (
        draw_line as draw_line,
    )
    from switch_ema.analysis.landscape.figure import (
        draw_lines as draw_lines,
    )
    from switch_ema.analysis.landscape.figure import (
        draw_surfaces as draw_surfaces,
    )
    from switch_ema.analysis.landscape.surface import (
        LandscapeLine as LandscapeLine,
    )
    from switch_ema.analysis.landscape.surface import (
        LandscapeSurface as LandscapeSurface,
    )
    from switch_ema.analysis.landscape.surface import (
        Notes as Notes,
    )
    from switch_ema.analysis.landscape.surface import (
        landscape_1d as landscape_1d,
    )
    from switch_ema.analysis.landscape.surface import (
        landscape_2d as landscape_2d,
    )
    from switch_ema.analysis.landscape.surface import (
        steps_around as steps_around,
    )

_HOMES = {
    "LandscapeLine": "surface",
    "LandscapeSurface": "surface",
    "Notes": "surface",
    "landscape_1d": "surface",
    "landscape_2d": "surface",
    "steps_around": "surface",
    "PrincipalDirections": "directions",
    "explained_share": "directions",
    "line_between": "directions",
    "parameters_of": "directions",
    "principal_directions": "directions",
    "project": "directions",
    "random_directions": "directions",
    "Evaluation": "evaluation",
    "evaluate_points": "evaluation",
    "caption": "figure",
    "draw_line": "figure",
    "draw_lines": "figure",
    "draw_surfaces": "figure",
}

__all__ = [*_HOMES]
__getattr__ = lazy_names(__name__, _HOMES)
