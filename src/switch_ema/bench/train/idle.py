"""Finds methods that never acted in a training, which must not be judged."""

from dataclasses import replace
from typing import Any

import torch

from switch_ema.averaging.averager import Averager
from switch_ema.averaging.schedules.intervals import Steps
from switch_ema.bench.methods import Method, timing_of
from switch_ema.bench.spec import parse_method_spec
from switch_ema.bench.text import counted
from switch_ema.bench.train.starts import local_part

_STARTS = ("start", "switch_start")
_SHARE = 6
"""A suggested interval in steps is this part of the training."""


def why_idle(method: Method, averager: Averager | None, epochs: int) -> str:
    """Say why a method has not acted, and which option would change that.

    A method that writes the live weights has acted if it has done so at least once; any
    other if its average differs from the live weights. Methods that decide for
    themselves when to act are judged by what they decided.

    Args:
        method: the method, with the task's options.
        averager: its averager after the last step.
        epochs: length of the training, from which some options get their defaults.

    Returns:
        Such as "30 steps, k = 100; try lookahead:k=5"; empty if it has acted.
    """
    if averager is None or averager.steps == 0 or method.decides_by_seed:
        return ""
    if averager.switches > 0 if averager.active else _differs(averager):
        return ""
    steps, done = averager.steps, averager.epochs
    for option, value in timing_of(method, epochs).items():
        in_steps = isinstance(value, Steps) or option in ("k", "update_every")
        number = value.n if isinstance(value, Steps) else value
        if not isinstance(number, (int, float)):
            continue  # a function of the epoch
        total = steps if in_steps else done
        # An average of a single set of weights is a copy of the live ones.
        least = 1 if averager.active else 2
        if option in _STARTS:
            if number == 0 or number + least <= total:
                continue
            better: Any = (total - least) // 2 if total >= least else None
        else:
            if least * number <= total:
                continue
            better = max(1, steps // _SHARE)
            if not in_steps:
                better = 1 if done >= least else f"{better}it"
            elif isinstance(value, Steps):
                better = f"{better}it"
        length = counted(total, "step" if in_steps else "epoch")
        return f"{length}, {option} = {number:g}{_try(method, option, better)}"
    return f"{counted(steps, 'step')}, {counted(done, 'epoch')}"


def _differs(averager: Averager) -> bool:
    shown, live = averager.averaged_tensors(), averager.live_tensors()
    # Local shards: ranks must not wait for each other here.
    pairs = [(local_part(shown[name]), local_part(live[name])) for name in live]
    return any(not torch.equal(own.to(tensor), tensor) for own, tensor in pairs)


def _try(method: Method, option: str, better: Any) -> str:
    if better is None:
        return "; train for longer"
    typed = parse_method_spec(method.label)
    spec = replace(typed, options={**typed.options, option: better})
    return f"; try {spec}"
