"""Averaging methods as teachers, which make the student's targets.

In MoCo and BYOL the averaged model takes part in training: it computes the targets. The
average is the one that the comparison's method keeps. Plain training has none, so the
student is its own teacher; EMA gives the usual momentum teacher; with Switch EMA the
student continues from its teacher's weights at every switch.
"""

from dataclasses import replace

from switch_ema.averaging.schedules.decay import cosine
from switch_ema.bench.method_names import CONTROL, PLAIN
from switch_ema.bench.methods import Method


def as_teacher(
    method: Method, *, steps: int, final_decay: float, exclude: tuple[str, ...]
) -> Method:
    """Return an averaging method as it is used for a teacher.

    Args:
        method: The method as the comparison names it.
        steps: Optimizer steps of the whole training.
        final_decay: Final value of a decay that is given as a number: it rises to it
            along a cosine over the training, unless the method has an option
            ``warmup``.
        exclude: Names of tensors that are not weights, which are not averaged.
    """
    options = dict(method.spec.options)
    if method.name in (PLAIN, CONTROL):
        return method
    decay = options.get("decay")
    if isinstance(decay, float) and "warmup" not in options:
        final = max(decay, final_decay)
        options["decay"] = cosine(decay, steps=steps, final=final)
    if exclude:
        given = options.get("exclude") or ()
        options["exclude"] = [*exclude, *([given] if isinstance(given, str) else given)]
    return replace(method, spec=replace(method.spec, options=options))
