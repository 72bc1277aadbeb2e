"""Calibration of a classifier's confidence."""

from typing import TYPE_CHECKING

from switch_ema._lazy import lazy_names

if TYPE_CHECKING:
    from switch_ema.analysis.calibration.figure import (
        draw_reliability as draw_reliability,
    )
    from switch_ema.analysis.calibration.measures import (
        Bin as Bin,
    )
    from switch_ema.analysis.calibration.measures import (
        Calibration as Calibration,
    )
    from switch_ema.analysis.calibration.measures import (
        Predictions as Predictions,
    )
    from switch_ema.analysis.calibration.measures import (
        brier_score as brier_score,
    )
    from switch_ema.analysis.calibration.measures import (
        calibration_error as calibration_error,
    )
    from switch_ema.analysis.calibration.measures import (
        fit_temperature as fit_temperature,
    )
    from switch_ema.analysis.calibration.measures import (
        measure_calibration as measure_calibration,
    )
    from switch_ema.analysis.calibration.measures import (
        negative_log_likelihood as negative_log_likelihood,
    )
    from switch_ema.analysis.calibration.measures import (
        reliability as reliability,
    )

_HOMES = {
    "Bin": "measures",
    "Calibration": "measures",
    "Predictions": "measures",
    "brier_score": "measures",
    "calibration_error": "measures",
    "fit_temperature": "measures",
    "measure_calibration": "measures",
    "negative_log_likelihood": "measures",
    "reliability": "measures",
    "draw_reliability": "figure",
}

__all__ = [*_HOMES]
__getattr__ = lazy_names(__name__, _HOMES)
