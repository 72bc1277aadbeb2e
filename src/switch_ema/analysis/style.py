"""The old name of :mod:`switch_ema.analysis.matplotlib_style`."""

from switch_ema._deprecation import warn_deprecated
from switch_ema.analysis.matplotlib_style import *  # noqa: F403

warn_deprecated(
    "switch_ema.analysis.style",
    "switch_ema.analysis.matplotlib_style",
    removed_in="0.4",
    stacklevel=3,
)
