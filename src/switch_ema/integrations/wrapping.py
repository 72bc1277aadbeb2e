"""Lets one method of one object run on the averaged weights."""

import functools
import warnings
from collections.abc import Callable, Iterable
from typing import Any

from switch_ema.averaging.averager import Averager
from switch_ema.averaging.best import Best

Current = Callable[[], Averager | Best | None]
Around = Callable[..., Any]
"""``around(original, shown, *args)`` calls ``shown(*args)``, and does more."""


def run_on_average(
    owner: Any, method: str, averager: Current, around: Around | None = None
) -> None:
    """Wrap ``owner.method``, of this object only, in ``averager().averaged()``.

    For trainers that tell callbacks when an evaluation begins and ends, but not when
    it fails: a ``with`` block around the call restores the live weights on any way
    out. While ``averager()`` is None the method runs as it was. A method that is
    wrapped already shows the average of the new averager in place of the old one's.

    Args:
        owner: the object.
        method: the name of its method.
        averager: says whose average is shown now.
        around: is called in place of the method, with the method as it was and with
            the one that shows the average.
    """
    present = getattr(owner, method)
    # Itself, since a wrapper of somebody else's around it may have its attributes.
    is_ours = getattr(present, "wrapper", None) is present
    original = present.original if is_ours else present

    def shown(*args: Any, **kwargs: Any) -> Any:
        current = averager()
        if current is None:
            return original(*args, **kwargs)
        with current.averaged():
            return original(*args, **kwargs)

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if around is None:
            return shown(*args, **kwargs)
        return around(original, shown, *args, **kwargs)

    vars(wrapped).update(wrapper=wrapped, original=original)
    setattr(owner, method, wrapped)


def warn_without_state(what: str = "the averager", stacklevel: int = 3) -> None:
    """Warn that a resumed checkpoint lacks the state of something."""
    warnings.warn(
        f"The checkpoint has no state of {what}, which therefore starts from scratch.",
        stacklevel=stacklevel,
    )


def check_alone(callback: Any, callbacks: Iterable[Any], kind: type) -> None:
    """Refuse a second averaging callback, since a checkpoint has room for one."""
    others = [other for other in callbacks if isinstance(other, kind)]
    if any(other is not callback for other in others):
        raise ValueError(
            f"A trainer takes one {kind.__name__}, got {len(others)}; use decays=[...] "
            "for more averages."
        )
