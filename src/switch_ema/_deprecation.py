"""Deprecated names: each warns once and names its replacement."""

import warnings

_warned: set[str] = set()


def warn_deprecated(
    old: str, new: str, *, removed_in: str, stacklevel: int = 2
) -> None:
    """Warn, once per process and name, that a name is deprecated.

    Uses ``FutureWarning``, because Python hides ``DeprecationWarning`` from users of a
    library.

    Args:
        old: full name that was used.
        new: full name of the replacement.
        removed_in: the version that removes the old name.
        stacklevel: 1 is the caller of this function, 2 the caller's caller.

    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     for _ in range(2):
    ...         warn_deprecated("pkg.Old", "pkg.New", removed_in="9.0")
    >>> [str(one.message) for one in caught]
    ['pkg.Old is deprecated and will be removed in 9.0; use pkg.New.']
    """
    if old in _warned:
        return
    _warned.add(old)
    warnings.warn(
        f"{old} is deprecated and will be removed in {removed_in}; use {new}.",
        FutureWarning,
        stacklevel=stacklevel + 1,
    )
