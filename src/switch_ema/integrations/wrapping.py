"""Run a method of one object on the averaged weights; checks shared by callbacks."""

import functools
import warnings
from collections.abc import Callable, Iterable
from typing import Any

from switch_ema.averaging.averager import Averager
from switch_ema.averaging.best import Best

Current = Callable[[], Averager | Best | None]
Around = Callable[..., Any]
"""``around(original, shown, *args)`` wraps extra work around ``shown(*args)``."""


def run_on_average(
    owner: Any, method: str, averager: Current, around: Around | None = None
) -> None:
    """Wrap ``owner.method``, on this object only, in ``averager().averaged()``.

    For trainers that notify callbacks when an evaluation begins and ends, but not when
    it fails: a ``with`` block around the call always restores the live weights. While
    ``averager()`` is None, the method runs unchanged.

    Args:
        owner: the object whose method is wrapped.
        method: the name of the method.
        averager: returns the averager to use now, or None.
        around: called in place of the method; its first two arguments are the original
            method and the one that runs on the average.
    """

    def run(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        def shown(*args: Any, **kwargs: Any) -> Any:
            current = averager()
            if current is None:
                return original(*args, **kwargs)
            with current.averaged():
                return original(*args, **kwargs)

        if around is None:
            return shown(*args, **kwargs)
        return around(original, shown, *args, **kwargs)

    run_inside(owner, method, run)


def run_inside(owner: Any, method: str, around: Callable[..., Any]) -> None:
    """Replace ``owner.method``, on this object only, with ``around(original, ...)``.

    Doing so again replaces the old ``around`` with the new one.
    """
    present = getattr(owner, method)
    # functools.wraps copies attributes, so a third-party wrapper may carry ours too.
    is_ours = getattr(present, "wrapper", None) is present
    original = present.original if is_ours else present

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    vars(wrapped).update(wrapper=wrapped, original=original)
    setattr(owner, method, wrapped)


def warn_without_state(what: str = "the averager", stacklevel: int = 3) -> None:
    """Warn that the resumed checkpoint has no state for ``what``."""
    warnings.warn(
        f"The checkpoint has no state of {what}, which therefore starts from scratch.",
        stacklevel=stacklevel,
    )


def check_alone(callback: Any, callbacks: Iterable[Any], kind: type) -> None:
    """Reject a second averaging callback: a checkpoint stores the state of only one."""
    others = [other for other in callbacks if isinstance(other, kind)]
    if any(other is not callback for other in others):
        raise ValueError(
            f"A trainer takes one {kind.__name__}, got {len(others)}; use decays=[...] "
            "for more averages."
        )
