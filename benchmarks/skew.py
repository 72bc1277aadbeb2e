"""False positives and power for normal, skewed or tied paired differences.

    python benchmarks/skew.py [--repeats 5000] [--seeds 3 5 8 12 16 24 32]

Each repeat is one comparison of a method with plain by the statistics of the bench,
beside Student's t-test alone (or the sign test where differences are near ties).
"""

import argparse
from collections.abc import Callable
from math import exp, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import records
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy.optimize import brentq
from scipy.stats import nct, t

from switch_ema.bench.stats.paired import LEVEL, compare

Values = NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, int]], Values]

# The true mean difference is zero, so any verdict is false.
DIFFERENCES: dict[str, Draw] = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "Student's t, 3 degrees": lambda rng, shape: rng.standard_t(3, size=shape),
    "normal, rounded to its sd": lambda rng, shape: np.rint(rng.normal(size=shape)),
    "lognormal, sigma 0.5": lambda rng, shape: (
        rng.lognormal(0, 0.5, size=shape) - exp(0.125)
    ),
    "exponential": lambda rng, shape: rng.exponential(size=shape) - 1,
    "gamma, shape 0.5": lambda rng, shape: rng.gamma(0.5, size=shape) - 0.5,
    "lognormal, sigma 1": lambda rng, shape: rng.lognormal(size=shape) - exp(0.5),
}
GAIN = 1.8
"""A true gain in standard deviations, with an exponential tail against it."""
POWER = 0.9
"""Power of Student's t-test on normal differences, to measure the loss of power."""


def verdicts(differences: Values) -> tuple[float, float]:
    """Return the shares with a verdict: by Student's t, and by ours with no warning."""
    student = ours = 0
    for number, row in enumerate(differences):
        # Values are integers, so differences keep their step size.
        plain = np.random.default_rng(number).integers(0, 50, size=len(row))
        curves = {
            "plain": {seed: [float(v)] for seed, v in enumerate(plain)},
            "ema": {seed: [float(v)] for seed, v in enumerate(plain + row)},
        }
        found = compare(curves, higher_is_better=True)[1].difference
        assert found is not None, "all seeds are paired"
        ours += found.p < LEVEL and not found.is_doubtful
        by_t = found.p
        if found.sd:
            by_t = 2 * t.sf(abs(found.mean) / found.sd * sqrt(found.n), found.n - 1)
        student += by_t < LEVEL
    return student / len(differences), ours / len(differences)


def shift_of(seeds: int) -> float:
    """Return the mean, in standard deviations, that Student's t finds with POWER."""
    critical = t.isf(LEVEL / 2, seeds - 1)
    found = brentq(lambda nc: nct.sf(critical, seeds - 1, nc) - POWER, 0, 5 * critical)
    return float(found) / sqrt(seeds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5_000)
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[3, 5, 8, 12, 16, 24, 32]
    )
    parser.add_argument("--json", type=Path, default=records.RESULTS / "skew.json")
    arguments = parser.parse_args()
    results: dict[str, Any] = records.describe_run()
    results |= {"repeats": arguments.repeats, "level": LEVEL, "shares": {}}
    table = Table("differences", *(f"n = {seeds}" for seeds in arguments.seeds))
    for name, draw in DIFFERENCES.items():
        results["shares"][name] = {}
        for seeds in arguments.seeds:
            rng = np.random.default_rng(seeds)
            found = verdicts(draw(rng, (arguments.repeats, seeds)))
            results["shares"][name][seeds] = found
        table.add_row(name, *map(_spelled, results["shares"][name].values()))
    results["power"] = {
        seeds: verdicts(
            np.random.default_rng(seeds).normal(
                shift_of(seeds), size=(arguments.repeats, seeds)
            )
        )
        for seeds in arguments.seeds
    }
    table.add_row("normal with a gain", *map(_spelled, results["power"].values()))
    results["power_skewed"] = {
        seeds: verdicts(
            1
            + GAIN
            - np.random.default_rng(seeds).exponential(size=(arguments.repeats, seeds))
        )
        for seeds in arguments.seeds
    }
    skewed = map(_spelled, results["power_skewed"].values())
    table.add_row(f"exponential, tail against a gain of {GAIN} sd", *skewed)
    records.write(results, arguments.json)
    console = Console()
    console.print(table)
    console.print("Verdicts of Student's t-test alone, then ours without a warning.")
    console.print(records.conditions(results))


def _spelled(shares: tuple[float, float]) -> str:
    return " -> ".join(f"{share:.1%}" for share in shares)


if __name__ == "__main__":
    main()
