"""The figures of docs/theory.md: data and file names."""

from collections.abc import Iterator

import numpy as np
from matplotlib.figure import Figure

from switch_ema.theory.checks import Grid, check_grid
from switch_ema.theory.figures import (
    Race,
    draw_bounds,
    draw_checks,
    draw_map,
    draw_races,
)
from switch_ema.theory.maps import switch_map
from switch_ema.theory.periodic import expected_losses
from switch_ema.theory.propositions import bounds, measured_sigma
from switch_ema.theory.quadratic import NoisyQuadratic, SwitchSettings
from switch_ema.theory.simulation import constant_rates


def example_model() -> NoisyQuadratic:
    """Return ten directions with curvatures from 0.01 to 1, and noise in proportion."""
    curvatures = np.geomspace(0.01, 1, 10)
    return NoisyQuadratic.diagonal(curvatures, curvatures)


def gallery() -> Iterator[tuple[str, Figure]]:
    """Yield the name and drawing of each figure; takes a few seconds in total."""
    yield "theory-variance", _variance()
    yield "theory-time", _time()
    yield "theory-map", draw_map(switch_map())
    yield "theory-bounds", _bounds()


def _variance() -> Figure:
    grid = Grid(
        rates=np.linspace(0.1, 1.9, 19).tolist(),
        decays=(0.9,),
        curvatures=(1.0,),
        intervals=(10,),
        chains=400,
    )
    rows = check_grid(grid)
    return draw_checks([row for row in rows if row.quantity.startswith("V of")])


def _time() -> Figure:
    model, decay, rate, steps = example_model(), 0.99, 0.5, 20_000
    start, rates = np.full(model.size, 3.0), constant_rates(rate, steps)
    plain = expected_losses(model, SwitchSettings(decay=decay), rates, start)
    return draw_races(
        [
            Race(
                rf"T = {every}, $(1-d)\,T$ = {(1 - decay) * every:g}",
                every,
                plain,
                expected_losses(
                    model, SwitchSettings(decay=decay, every=every), rates, start
                ),
            )
            for every in (10, 100)
        ]
    )


def _bounds() -> Figure:
    model, decay = example_model(), 0.99
    start = np.full(model.size, 3.0)
    rates = np.geomspace(0.003, 1, 15)
    found = [bounds(model, rate, decay, 100, start) for rate in rates.tolist()]
    intervals = np.unique(np.geomspace(2, 2000, 30).astype(int))
    gains = {
        f"{distance:g}": (
            intervals.astype(np.float64),
            np.array(
                [
                    measured_sigma(model, 0.5, decay, T, np.full(model.size, distance))
                    for T in intervals.tolist()
                ]
            ),
        )
        for distance in (0.5, 1.0, 3.0)
    }
    return draw_bounds(rates, found, gains)
