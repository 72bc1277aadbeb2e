"""Closed forms against simulation over the whole grid."""

import numpy as np
import pytest

from switch_ema.theory.checks import Check, Grid, Setting, check_grid

# Over 4 x 3 x 4 x 3 settings; all share this one seed, chosen before any run.
WIDE = Grid(
    rates=(0.1, 0.3, 0.6, 0.8),
    decays=(0.5, 0.9, 0.96),
    curvatures=(0.3, 0.8, 1.4, 2.2),
    intervals=(2, 10, 50),
    chains=2000,
    seed=0,
)


@pytest.fixture(scope="module")
def rows():
    return check_grid(WIDE)


def test_all_settings_and_quantities_are_there(rows):
    # per setting of rate, decay, curvature: 3 + 4 for each interval
    assert len(rows) == 4 * 3 * 4 * (3 + 4 * 3)
    assert len({(row.quantity, row.setting) for row in rows}) == len(rows)


def test_deviations_are_those_of_chance(rows):
    """About 0.27% lie beyond 3; the count is 0 to 7 of 720 in all but 1 case of 1,000.

    The error is estimated from the same chains, so that it is small together with the
    variance; the bound of the largest deviation leaves room for this.
    """
    deviations = np.abs([row.deviation for row in rows])
    assert np.sum(deviations > 3) <= 7
    assert deviations.max() < 4.5
    assert 0.85 < np.mean(deviations**2) < 1.15


def test_a_wrong_closed_form_would_be_found(rows):
    """A decay that is off by 0.01 shows."""
    shifted = Grid(
        rates=WIDE.rates,
        decays=(0.95,),
        curvatures=WIDE.curvatures,
        intervals=(10,),
        chains=2,
    )
    wrong = {
        (row.quantity, row.setting.rate, row.setting.curvature, row.setting.every): row
        for row in check_grid(shifted)
    }
    beyond = 0
    for row in rows:
        setting = row.setting
        key = row.quantity, setting.rate, setting.curvature, setting.every
        if setting.decay == 0.96 and row.quantity == "V of EMA":
            moved = (row.simulated - wrong[key].exact) / row.standard_error
            beyond += abs(moved) > 3
    assert beyond >= 12  # of 16


def test_the_same_seed_gives_the_same_rows_and_another_does_not():
    small = Grid(rates=(0.5,), decays=(0.8,), intervals=(4,), chains=50)
    assert check_grid(small) == check_grid(small)
    other = Grid(rates=(0.5,), decays=(0.8,), intervals=(4,), chains=50, seed=1)
    assert check_grid(small)[0].simulated != check_grid(other)[0].simulated


def test_progress_counts_every_simulation():
    seen = []
    grid = Grid(rates=(0.5,), decays=(0.5, 0.8), intervals=(4,), chains=10)
    check_grid(grid, lambda done, total: seen.append((done, total)))
    assert seen == [(i, 10) for i in range(1, 11)]


def test_rows_read_well():
    row = Check("V of SGD", Setting(0.1, 0.9, 2.0, 5), 1.0, 1.2, 0.1)
    assert row.deviation == pytest.approx(2)
    assert str(row.setting) == "rate=0.1 d=0.9 curvature=2 T=5"


def test_bad_input():
    with pytest.raises(ValueError, match="chains must be a whole number of at least 2"):
        check_grid(Grid(chains=1))
    with pytest.raises(ValueError, match="learning rate is too large"):
        check_grid(Grid(rates=(3.0,), chains=2))
