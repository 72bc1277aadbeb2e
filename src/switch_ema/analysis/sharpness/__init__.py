"""Sharpness of the loss: curvature, worst cases, noise, and a figure."""

from typing import TYPE_CHECKING

from switch_ema._lazy import lazy_names

if TYPE_CHECKING:
    from switch_ema.analysis.sharpness.curvature import (
        LossSurface as LossSurface,
    )
    from switch_ema.analysis.sharpness.curvature import (
        hessian_matrix as hessian_matrix,
    )
    from switch_ema.analysis.sharpness.figure import (
        draw_sharpness as draw_sharpness,
    )
    from switch_ema.analysis.sharpness.measures import (
        NoiseCurve as NoiseCurve,
    )
    from switch_ema.analysis.sharpness.measures import (
        Sharpness as Sharpness,
    )
    from switch_ema.analysis.sharpness.measures import (
        WorstCase as WorstCase,
    )
    from switch_ema.analysis.sharpness.measures import (
        ascent_gap as ascent_gap,
    )
    from switch_ema.analysis.sharpness.measures import (
        loss_under_noise as loss_under_noise,
    )
    from switch_ema.analysis.sharpness.measures import (
        measure_sharpness as measure_sharpness,
    )
    from switch_ema.analysis.sharpness.measures import (
        noise_curve as noise_curve,
    )
    from switch_ema.analysis.sharpness.measures import (
        worst_case as worst_case,
    )
    from switch_ema.analysis.sharpness.spectrum import (
        Estimate as Estimate,
    )
    from switch_ema.analysis.sharpness.spectrum import (
        estimate_mean as estimate_mean,
    )
    from switch_ema.analysis.sharpness.spectrum import (
        hessian_trace as hessian_trace,
    )
    from switch_ema.analysis.sharpness.spectrum import (
        top_eigenvalues as top_eigenvalues,
    )

_HOMES = {
    "NoiseCurve": "measures",
    "Sharpness": "measures",
    "WorstCase": "measures",
    "ascent_gap": "measures",
    "loss_under_noise": "measures",
    "measure_sharpness": "measures",
    "noise_curve": "measures",
    "worst_case": "measures",
    "LossSurface": "curvature",
    "hessian_matrix": "curvature",
    "Estimate": "spectrum",
    "estimate_mean": "spectrum",
    "hessian_trace": "spectrum",
    "top_eigenvalues": "spectrum",
    "draw_sharpness": "figure",
}

__all__ = [*_HOMES]
__getattr__ = lazy_names(__name__, _HOMES)
