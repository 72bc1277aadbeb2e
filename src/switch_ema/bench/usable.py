"""Which measured values can be counted with."""

from math import isfinite

LARGEST = 1e150
"""Beyond it squares, and so standard deviations, are infinite: as good as diverged."""


def is_usable(value: float) -> bool:
    """Tell a value that means and spreads can be made of.

    >>> is_usable(3.0), is_usable(float("nan")), is_usable(-1e200)
    (True, False, False)
    """
    return isfinite(value) and abs(value) <= LARGEST
