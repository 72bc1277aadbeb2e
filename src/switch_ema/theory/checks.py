"""Checks of closed forms against simulation, printed by ``switch-ema theory``."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from switch_ema._checks import check_count
from switch_ema.theory.periodic import contraction, mode_losses, steady_state
from switch_ema.theory.quadratic import (
    Array,
    NoisyQuadratic,
    SwitchSettings,
    stationary,
)
from switch_ema.theory.simulation import (
    State,
    constant_rates,
    gradient_noise,
    last,
    literal_steps,
    mean_and_error,
    switch_ema_steps,
)

_FORGOTTEN = 1e-4  # of the variance: a hundredth of the standard error of 10,000 chains
_START = 3.0
_HORIZON = 3  # intervals, of the rows that start away from the minimum


@dataclass(frozen=True)
class Setting:
    """One point of the grid."""

    rate: float
    decay: float
    curvature: float
    every: int | None = None

    def __str__(self) -> str:
        interval = "" if self.every is None else f" T={self.every}"
        return (
            f"rate={self.rate:g} d={self.decay:g} curvature={self.curvature:g}"
            f"{interval}"
        )


@dataclass(frozen=True)
class Check:
    """One number in closed form and from simulation."""

    quantity: str
    setting: Setting
    exact: float
    simulated: float
    standard_error: float

    @property
    def deviation(self) -> float:
        """The difference in standard errors."""
        return (self.simulated - self.exact) / self.standard_error


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Which settings to check; the default takes a few seconds."""

    rates: Sequence[float] = (0.2, 0.5)
    decays: Sequence[float] = (0.8, 0.95)
    curvatures: Sequence[float] = (0.3, 1.0, 2.4)
    intervals: Sequence[int] = (4, 25)
    chains: int = 10_000
    seed: int = 0


def check_grid(
    grid: Grid | None = None, progress: Callable[[int, int], None] | None = None
) -> list[Check]:
    """Simulate each setting of the grid and compare with the closed forms.

    Chains are independent, so the standard errors need no correction. Directions of
    different curvature run together in one diagonal model with independent noise; live
    weights and shadow of one setting share theirs. If the closed forms are right, about
    0.3% of rows lie beyond 3 standard errors.

    Args:
        grid: the settings; the default grid if None.
        progress: called with done and total after each simulation.

    Returns:
        The rows, in the order of the grid.
    """
    grid = grid or Grid()
    check_count("chains", grid.chains, 2)
    points = list(product(grid.rates, grid.decays))
    total = len(points) * (2 + 3 * len(grid.intervals))
    seeds = iter(np.random.SeedSequence(grid.seed).generate_state(total).tolist())
    rows: list[Check] = []
    done = 0
    for rate, decay in points:
        run = _Run(NoisyQuadratic.diagonal(grid.curvatures), grid.chains, rate, decay)
        for new_rows in run.all_rows(grid.intervals, seeds):
            rows += new_rows
            done += 1
            if progress is not None:
                progress(done, total)
    return rows


@dataclass(frozen=True)
class _Run:
    """The simulations at one learning rate and decay."""

    model: NoisyQuadratic
    chains: int
    rate: float
    decay: float

    def all_rows(
        self, intervals: Sequence[int], seeds: Iterator[int]
    ) -> Iterator[list[Check]]:
        """Yield the rows of one simulation after another."""
        yield self.plain_rows(next(seeds))
        yield self.literal_rows(None, next(seeds))
        for every in intervals:
            yield self.literal_rows(every, next(seeds))
            yield self.steady_rows(every, next(seeds))
            yield self.biased_rows(every, next(seeds))

    def plain_rows(self, seed: int) -> list[Check]:
        closed = stationary(self.model, self.rate, self.decay)
        state = self._settled(SwitchSettings(decay=self.decay), 0, seed)
        return [
            *self._rows("V of SGD", None, np.diag(closed.sgd), state.live**2),
            *self._rows("V of EMA", None, np.diag(closed.ema), state.shadow**2),
        ]

    def literal_rows(self, every: int | None, seed: int) -> list[Check]:
        """Check Equation 3; without an interval it is Proposition 1's SEMA."""
        slow = self.rate * (1 - self.decay)
        cycle = [slow] if every is None else [slow] * (every - 1) + [self.rate]
        settings = SwitchSettings(decay=0)
        if every is None:
            exact = stationary(self.model, self.rate, self.decay).sema
        else:
            exact = steady_state(self.model, settings, cycle).live
        rates = constant_rates(self.rate, self._burn_in(settings, cycle))
        noise = gradient_noise(self.model, self.chains, seed)
        start = np.zeros(self.model.size)
        steps = literal_steps(self.model, self.decay, every, rates, start, noise)
        name = "V of SEMA (Prop. 1)" if every is None else "V of Eq. 3"
        return self._rows(name, every, np.diag(exact), last(steps).live ** 2)

    def steady_rows(self, every: int, seed: int) -> list[Check]:
        """Check in the middle of an interval, where live and shadow differ."""
        settings, phase = SwitchSettings(decay=self.decay, every=every), every // 2
        exact = steady_state(self.model, settings, self.rate, phase)
        state = self._settled(settings, phase, seed)
        name = "V of Switch EMA"
        live, shadow = np.diag(exact.live), np.diag(exact.shadow)
        return [
            *self._rows(f"{name}, live", every, live, state.live**2),
            *self._rows(f"{name}, shadow", every, shadow, state.shadow**2),
        ]

    def biased_rows(self, every: int, seed: int) -> list[Check]:
        """Check the expected loss a few intervals after a start off the minimum."""
        settings = SwitchSettings(decay=self.decay, every=every)
        rates = constant_rates(self.rate, _HORIZON * every)
        start = np.full(self.model.size, _START)
        exact = mode_losses(self.model, settings, rates, start).shadow[-1]
        noise = gradient_noise(self.model, self.chains, seed)
        state = last(switch_ema_steps(self.model, settings, rates, start, noise))
        samples = 0.5 * np.diag(self.model.curvature) * state.shadow**2
        return self._rows("loss of Switch EMA, biased start", every, exact, samples)

    def _settled(self, settings: SwitchSettings, phase: int, seed: int) -> State:
        cycle = [self.rate] * (settings.every or 1)
        rates = constant_rates(self.rate, self._burn_in(settings, cycle) + phase)
        noise = gradient_noise(self.model, self.chains, seed)
        start = np.zeros(self.model.size)
        return last(switch_ema_steps(self.model, settings, rates, start, noise))

    def _burn_in(self, settings: SwitchSettings, cycle: list[float]) -> int:
        """Return whole periods after which the start is forgotten."""
        factor = contraction(self.model, settings, cycle)
        steps = math.log(_FORGOTTEN) / (2 * math.log(factor))
        return math.ceil(steps / len(cycle)) * len(cycle)

    def _rows(
        self, quantity: str, every: int | None, exact: Array, samples: Array
    ) -> list[Check]:
        means, errors = mean_and_error(samples)
        columns = np.diag(self.model.curvature), exact, means, errors
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return [
            Check(
                quantity,
                Setting(self.rate, self.decay, curvature, every),
                *numbers,
            )
            for curvature, *numbers in rows
        ]
