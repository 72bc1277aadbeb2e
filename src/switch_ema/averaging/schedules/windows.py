"""Decays defined by a time span: a half-life, or a share of the steps so far.

``fraction`` and ``power`` do not need the length of the run: the window grows with it,
and the weight of the initial weights is always negligible.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from switch_ema._checks import check_positive, check_range
from switch_ema.averaging.schedules.decay import DecaySchedule
from switch_ema.averaging.schedules.progress import read_span

WIDEST = 1 / math.sqrt(12)
"""``sigma_rel`` of the mean over all steps (gamma = 0)."""
AUTO_SHARE = 0.1
"""Half-life with ``decay="auto"``, as a share of the steps so far.

Other shares, and shares that follow the learning rate, were better in some settings and
worse in others; none met the rule fixed beforehand (docs/choosing.md)."""


def half_life(
    span: str | float | None = None,
    *,
    n_epochs: float | None = None,
    n_steps: float | None = None,
    samples_per_step: float | Callable[[int], float] | None = None,
) -> DecaySchedule:
    """Halve the contribution of old weights to the shadow within a time span.

    ``decay = 2 ** (-1 / steps)``. A span in epochs does not need the number of steps
    per epoch: the first epoch uses the steps so far instead, which warms the decay up
    and reaches the final value without a jump. A span in samples or tokens,
    ``decay = 2 ** (-samples_per_step / samples)``, stays correct when the batch size
    changes between runs or, with a callable, within a run.

    Args:
        span: such as ``"0.1ep"`` (epochs), ``"500it"`` (optimizer steps), or
            ``"5M samples"`` and ``"2B tokens"``, which need ``samples_per_step``; a
            plain number is in steps.
        n_epochs: the same in epochs, instead of ``span``.
        n_steps: the same in steps, instead of ``span``.
        samples_per_step: samples (or tokens) per optimizer step, summed over all
            processes; a number, or a callable of the step (0 is the first).

    >>> half_life("1it")(0), half_life(1)(0)
    (0.5, 0.5)
    >>> half_life("0.1ep")(0, steps_per_epoch=100) == half_life(n_steps=10)(0)
    True
    >>> half_life("1k samples", samples_per_step=100)(0) == half_life("10it")(0)
    True
    """
    given = [value for value in (span, n_epochs, n_steps) if value is not None]
    if len(given) != 1:
        raise ValueError(
            "half_life takes exactly one of span, n_epochs and n_steps, "
            f"got {len(given)}."
        )
    unit, number = "it", n_steps
    if isinstance(span, str):
        number, unit = _read_span(span)
    elif span is not None:
        number = span
    elif n_epochs is not None:
        unit, number = "ep", n_epochs
    in_samples = unit in ("samples", "tokens")
    if in_samples != (samples_per_step is not None):
        raise ValueError(
            f"half_life in {unit} needs samples_per_step, the number of {unit} per "
            "optimizer step."
            if in_samples
            else "half_life takes samples_per_step only with a span in samples or "
            f"tokens, got {given[0]!r}."
        )
    names = {"ep": "epochs", "it": "steps"}
    number = check_positive(f"half_life in {names.get(unit, unit)}", number)
    if not in_samples:
        return _HalfLife(number, unit == "ep")
    if not callable(samples_per_step):
        check_positive("samples_per_step", samples_per_step)
    assert samples_per_step is not None
    return _SampleHalfLife(number, samples_per_step)


def fraction(share: float = AUTO_SHARE) -> DecaySchedule:
    """Use a half-life that is a fraction of the steps so far.

    ``decay = 2 ** (-1 / (share * t))`` at the t-th step. The length of the run need not
    be known: the average always spans the same share of it. ``decay="auto"`` means this
    for :class:`EMA`. The profile is that of :func:`power` with
    ``gamma + 1 = ln(2) / share``; for 0.1, ``sigma_rel`` is 0.111.

    Args:
        share: half-life as a share of the steps so far, in (0, 1).

    >>> [round(fraction(0.1)(n), 3) for n in (0, 9, 99, 999)]
    [0.001, 0.5, 0.933, 0.993]
    """
    return _Fraction(check_range("fraction", check_positive("fraction", share), 0, 1))


def power(sigma_rel: float = 0.05) -> DecaySchedule:
    """Average online with a power-function profile of a given width.

    ``decay = (1 - 1/t) ** (gamma + 1)`` at the t-th step, as in :class:`PostHocEMA`.

    Args:
        sigma_rel: the profile's standard deviation as a share of the training so far,
            in (0, 0.2886].

    >>> [round(power(0.05)(n), 3) for n in (0, 19, 1999)]
    [0.0, 0.398, 0.991]
    """
    return _Power(sigma_rel_to_gamma(sigma_rel))


def gamma_to_sigma_rel(gamma: float) -> float:
    """``sqrt((gamma + 1) / ((gamma + 2)**2 * (gamma + 3)))`` for gamma of at least 0.

    >>> round(gamma_to_sigma_rel(0), 4)
    0.2887
    """
    if not gamma >= 0:
        raise ValueError(f"gamma must be at least 0, got {gamma!r}.")
    return math.sqrt((gamma + 1) / ((gamma + 2) ** 2 * (gamma + 3)))


def sigma_rel_to_gamma(sigma_rel: float) -> float:
    """Invert :func:`gamma_to_sigma_rel`, by bisection.

    >>> round(sigma_rel_to_gamma(0.05), 2), round(sigma_rel_to_gamma(0.10), 2)
    (16.97, 6.94)
    """
    if not 0 < sigma_rel <= WIDEST:
        raise ValueError(
            f"sigma_rel must be in (0, {WIDEST:.6f}] (the upper bound is the mean of "
            f"all steps), got {sigma_rel!r}."
        )
    # sigma_rel falls as gamma grows, and is below 1 / (gamma + 2).
    low, high = 0.0, 1 / sigma_rel
    for _ in range(100):
        middle = (low + high) / 2
        if gamma_to_sigma_rel(middle) > sigma_rel:
            low = middle
        else:
            high = middle
    return low


def _read_span(span: str) -> tuple[float, str]:
    found = read_span(span)
    if found is None or found[1] == "%":
        raise ValueError(
            "half_life must look like '0.1ep' (epochs), '500it' (steps), '5M samples' "
            f"or '2B tokens', got {span!r}."
        )
    return found


@dataclass(frozen=True)
class _HalfLife(DecaySchedule):
    span: float
    in_epochs: bool

    def __repr__(self) -> str:
        return f"half_life({self.span:.12g}{'ep' if self.in_epochs else 'it'})"

    def at(self, n: int, steps_per_epoch: int | None) -> float:
        epoch = (steps_per_epoch or n + 1) if self.in_epochs else 1
        return math.pow(2, -1 / (self.span * epoch))


@dataclass(frozen=True)
class _SampleHalfLife(DecaySchedule):
    span: float
    per_step: float | Callable[[int], float]

    def __repr__(self) -> str:
        per_step = "..." if callable(self.per_step) else f"{self.per_step:.12g}"
        return f"half_life({self.span:.12g} samples, samples_per_step={per_step})"

    def at(self, n: int, steps_per_epoch: int | None) -> float:
        count = self.per_step
        if callable(count):
            count = check_positive(f"samples_per_step at step {n}", count(n))
        return math.pow(2, -count / self.span)


@dataclass(frozen=True)
class _Fraction(DecaySchedule):
    share: float

    def __repr__(self) -> str:
        return f"fraction({self.share:.12g})"

    def at(self, n: int, steps_per_epoch: int | None) -> float:
        return math.pow(2, -1 / (self.share * (n + 1)))


@dataclass(frozen=True)
class _Power(DecaySchedule):
    gamma: float

    def __repr__(self) -> str:
        return f"power({gamma_to_sigma_rel(self.gamma):.12g})"

    def at(self, n: int, steps_per_epoch: int | None) -> float:
        return math.pow(1 - 1 / (n + 1), self.gamma + 1)
