"""Lets one method of one object run on the averaged weights."""

import functools
from collections.abc import Callable
from typing import Any

from switch_ema.averaging.averager import Averager


def run_on_average(
    owner: Any, method: str, averager: Callable[[], Averager | None]
) -> None:
    """Wrap ``owner.method``, of this object only, in ``averager().averaged()``.

    For trainers that tell callbacks when an evaluation begins and ends, but not when
    it fails: a ``with`` block around the call restores the live weights on any way
    out. While ``averager()`` is None the method runs as it was.
    """
    original = getattr(owner, method)

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        current = averager()
        if current is None:
            return original(*args, **kwargs)
        with current.averaged():
            return original(*args, **kwargs)

    setattr(owner, method, wrapped)
