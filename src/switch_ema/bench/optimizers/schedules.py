"""Learning-rate schedules by name, one value per optimizer step.

A schedule maps the step ``t`` (from 0) to a factor for the learning rate of every
parameter group. With ``T`` steps in all, of which ``W`` warm up:

| name | factor of the learning rate |
| --- | --- |
| constant | 1 |
| step | ``factor ** n`` after ``n`` of the milestones, which are fractions of ``T`` |
| cosine | from 1 to ``final`` by ``(1 + cos(pi * (t - W) / (E - W))) / 2`` |
| inverse-sqrt | ``sqrt(W / (t + 1))`` after the warm-up, as in fairseq |
| one-cycle | from ``start`` to 1 in ``rise * T`` steps, then to ``end``; half cosines |

With ``cycle_momentum=True``, one-cycle also takes Adam's beta1, or SGD's momentum, from
0.95 to 0.85 and back, as torch's OneCycleLR does by default.

The cosine ends at ``E = (1 - hold) * T``; the last ``hold`` of the steps, none by
default, keep its final rate.

After ``T`` steps the rate stays as it is, or a tail has a constant factor ``TAIL``.

Warm-up multiplies by ``(t + 1) / W`` while ``t < W``, or by that to the power
``warmup_power``, an option of the cosine (YOLOX: 2). One-cycle has a built-in
warm-up: there, ``W`` is the length of the rise.
"""

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from switch_ema._checks import check_count
from switch_ema.bench.errors import UsageError
from switch_ema.bench.optimizers.step import has_modes
from switch_ema.bench.spec import Spec, parse_spec
from switch_ema.bench.text import unknown

TAIL = 0.5
"""Factor of the learning rate after the schedule's end, where SWA averages: that of
SWA's published ResNets, which go from 0.1 to 0.05."""


def constant(t: int, total: int, warmup: int) -> float:
    """Stay at the learning rate."""
    return _warmup(t, warmup)


def step(
    t: int,
    total: int,
    warmup: int,
    *,
    factor: float = 0.1,
    milestones: Sequence[float] = (0.5, 0.75),
) -> float:
    """Drop by a factor at each milestone."""
    passed = sum(t >= milestone * total for milestone in milestones)
    return _warmup(t, warmup) * factor**passed


def cosine(
    t: int,
    total: int,
    warmup: int,
    *,
    final: float = 0.0,
    hold: float = 0.0,
    warmup_power: float = 1.0,
) -> float:
    """Fall to the final fraction, reached when the steps that hold it begin."""
    if not 0 <= hold < 1:
        raise UsageError(f"cosine: hold must be in [0, 1), got {hold}.")
    falling = max((1 - hold) * total - warmup, 1)
    progress = min(max(t - warmup, 0) / falling, 1.0)
    warmed: float = _warmup(t, warmup) ** warmup_power
    return warmed * _anneal(1.0, final, progress)


def _inverse_sqrt(t: int, total: int, warmup: int) -> float:
    """Fall with the square root of the step, from the end of the warm-up on."""
    return _warmup(t, warmup) if t < warmup else math.sqrt(max(warmup, 1) / (t + 1))


def _one_cycle(
    t: int,
    total: int,
    warmup: int,
    *,
    rise: float = 0.3,
    start: float = 1 / 25,
    end: float = 1 / 25e4,
    cycle_momentum: bool = False,
) -> float:
    """Rise to the learning rate and fall to almost nothing, as torch's OneCycleLR."""
    peak = max((warmup or rise * total) - 1, 0)
    if t < peak:
        return _anneal(start, 1.0, t / peak)
    return _anneal(1.0, end, min((t - peak) / max(total - 1 - peak, 1), 1.0))


class _CycledMomentum(LambdaLR):
    """A schedule that also sets Adam's beta1, or SGD's momentum, in every step."""

    def __init__(
        self,
        optimizer: Optimizer,
        factor: Callable[[int], float],
        momentum: Callable[[int], float],
    ) -> None:
        self._momentum = momentum
        super().__init__(optimizer, factor)

    def get_lr(self) -> list[float | Tensor]:
        """Set the momenta and return the learning rates."""
        momentum = self._momentum(self.last_epoch)
        for group in self.optimizer.param_groups:
            if "betas" in group:
                group["betas"] = (momentum, *group["betas"][1:])
            elif group.get("momentum"):
                group["momentum"] = momentum
        return super().get_lr()

    def state_dict(self) -> dict[str, Any]:
        """Return the state without the function, which cannot be pickled."""
        state: dict[str, Any] = super().state_dict()
        del state["_momentum"]
        return state


SCHEDULES: dict[str, Callable[..., float]] = {
    "constant": constant,
    "step": step,
    "cosine": cosine,
    "inverse-sqrt": _inverse_sqrt,
    "one-cycle": _one_cycle,
}


def check_schedule(schedule: str | Spec, *, schedule_free: bool = False) -> Spec:
    """Check name and options; schedule-free optimizers take only ``constant``.

    >>> check_schedule("cosine:final=0.01")
    Spec(name='cosine', options={'final': 0.01}, changes=())
    """
    spec = parse_spec(schedule) if isinstance(schedule, str) else schedule
    if spec.name not in SCHEDULES:
        raise unknown("schedule", spec.name, SCHEDULES)
    parameters = inspect.signature(SCHEDULES[spec.name]).parameters.values()
    valid = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    others = [option for option in spec.options if option not in valid]
    if others:
        raise UsageError(
            f"{spec.name} has no option {', '.join(others)}; "
            f"valid ones are {', '.join(valid) or 'none'}."
        )
    if schedule_free and spec.name != "constant":
        raise UsageError(
            "a schedule-free optimizer needs schedule constant (with or without "
            f"warm-up), got {spec.name!r}."
        )
    return spec


def create_schedule(
    schedule: str | Spec,
    optimizer: Optimizer,
    *,
    total_steps: int,
    warmup_steps: int = 0,
    has_tail: bool = False,
) -> LambdaLR:
    """Create a schedule; step it after each optimizer step.

    Its ``state_dict`` resumes exactly. Create it before the optimizer loads its state:
    a new schedule takes the current learning rates as the base rates.

    Args:
        schedule: Name, with options (``cosine:final=0.01``).
        optimizer: Its parameter groups are scheduled, each from its own learning rate.
        total_steps: Steps of the schedule; the rate is constant afterwards.
        warmup_steps: Number of warm-up steps among them.
        has_tail: Whether the factor afterwards is ``TAIL`` instead of the last one, or
            that one if it is larger.
    """
    spec = check_schedule(schedule, schedule_free=has_modes(optimizer))
    total = check_count("total_steps", total_steps)
    warmup = check_count("warmup_steps", warmup_steps, least=0)
    if warmup > total:
        raise UsageError(
            f"warm-up must fit into the {total} steps of training, got {warmup} steps."
        )
    shape, options = SCHEDULES[spec.name], dict(spec.options)
    try:
        factors = [shape(t, total, warmup, **options) for t in (0, total // 2, total)]
    except TypeError as error:
        raise UsageError(f"{spec}: {error}") from error
    if not all(0 <= factor < math.inf for factor in factors):
        raise UsageError(f"{spec} would make the learning rate negative or infinite.")

    def factor(t: int) -> float:
        own = shape(min(t, total), total, warmup, **options)
        return max(own, TAIL) if has_tail and t >= total else own

    if not options.get("cycle_momentum"):
        return LambdaLR(optimizer, factor)
    cycle = {**options, "start": 0.0, "end": 0.0}

    def momentum(t: int) -> float:
        return 0.95 - 0.1 * shape(min(t, total), total, warmup, **cycle)

    return _CycledMomentum(optimizer, factor, momentum)


def _warmup(t: int, warmup: int) -> float:
    return (t + 1) / warmup if t < warmup else 1.0


def _anneal(begin: float, end: float, progress: float) -> float:
    """Go from one value to another along half a cosine."""
    return end + (begin - end) * (1 + math.cos(math.pi * progress)) / 2
