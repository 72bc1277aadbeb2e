"""Lets one method of one object run on the averaged weights."""

import functools
import warnings
from collections.abc import Callable, Iterable
from typing import Any

from switch_ema.averaging.averager import Averager
from switch_ema.averaging.best import Best

Current = Callable[[], Averager | Best | None]


def run_on_average(owner: Any, method: str, averager: Current) -> None:
    """Wrap ``owner.method``, of this object only, in ``averager().averaged()``.

    For trainers that tell callbacks when an evaluation begins and ends, but not when
    it fails: a ``with`` block around the call restores the live weights on any way
    out. While ``averager()`` is None the method runs as it was. A method that is
    wrapped already shows the average of the new averager in place of the old one's.
    """
    present = getattr(owner, method)
    # Itself, since a wrapper of somebody else's around it may have its attributes.
    is_ours = getattr(present, "wrapper", None) is present
    original = present.original if is_ours else present

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        current = averager()
        if current is None:
            return original(*args, **kwargs)
        with current.averaged():
            return original(*args, **kwargs)

    vars(wrapped).update(wrapper=wrapped, original=original)
    setattr(owner, method, wrapped)


def warn_without_state(stacklevel: int = 3) -> None:
    """Say that a training is resumed whose checkpoint has nothing of the averager."""
    warnings.warn(
        "The checkpoint that is resumed has no state of the averager, so the average "
        "starts anew from its weights.",
        stacklevel=stacklevel,
    )


def check_alone(callback: Any, callbacks: Iterable[Any], kind: type) -> None:
    """Refuse a second averaging callback, since a checkpoint has room for one."""
    others = [other for other in callbacks if isinstance(other, kind)]
    if any(other is not callback for other in others):
        raise ValueError(
            f"A trainer takes one {kind.__name__}, got {len(others)}; for more "
            "averages of one training, make averagers of the same optimizer beside it."
        )
