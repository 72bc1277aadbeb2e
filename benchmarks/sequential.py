"""Error rate, power and seeds of comparisons that add seeds until they are decided.

    python benchmarks/sequential.py [--repeats 10000] [--max-seeds 64] [--round 4]

Each repeat is one comparison of a method with plain, judged after every round by the
statistics of the bench. Three tables: how often a verdict is wrong at any look if there
is no difference, beside Student's t-test repeated at every look; how often and with how
many seeds a difference is found, beside fixed numbers of seeds; and how often and with
how many seeds "no difference" is found. All but the first use a quarter of the repeats.
"""

import argparse
from collections.abc import Sequence
from itertools import count
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import records
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy.integrate import quad
from scipy.stats import chi, norm, t
from skew import DIFFERENCES

from switch_ema.bench.stats.paired import LEVEL, compare
from switch_ema.bench.stats.sequential import look_after, nominal_level

Values = NDArray[np.float64]

FIXED = (8, 16, 32)
EFFECTS = (0.25, 0.5, 1.0, 2.0)
"""True differences, in standard deviations of the differences."""
SMALLEST = 1.0
"""Smallest effect of interest, in the same unit."""
SMALL_EFFECTS = (0.0, 0.25, 0.5, SMALLEST)
METHODS = 5

KINDS = {
    **DIFFERENCES,
    "normal, 5% with 20 times the sd": lambda rng, shape: (
        rng.normal(size=shape) * np.where(rng.random(shape) < 0.05, 20, 1)
    ),
}


def looks_up_to(most: int, step: int, comparisons: int = 1) -> list[int]:
    """Return the numbers of seeds at which a comparison is judged."""
    looks = [look_after(0, comparisons, step, LEVEL)]
    while looks[-1] < most:
        looks.append(min(most, look_after(looks[-1], comparisons, step, LEVEL)))
    return looks


def decisions(
    differences: Values, looks: Sequence[int], smallest_effect: float = 0.0
) -> list[tuple[str, int]]:
    """Return each comparison's first decision and its number of seeds.

    Args:
        differences: one row per comparison, one column per seed; with three
            dimensions, the first one is the method and a decision is the first of any
            method.
        looks: numbers of seeds at which it is judged.
        smallest_effect: smallest difference that matters.
    """
    methods = differences[None] if differences.ndim == 2 else differences
    found = []
    for number in range(methods.shape[1]):
        # Values are integers, so differences keep their step size.
        rng = np.random.default_rng(number)
        plain = rng.integers(0, 50, size=methods.shape[2])
        values = {"plain": plain} | {
            f"method {index}": plain + own[number] for index, own in enumerate(methods)
        }
        found.append(_first_decision(values, looks, smallest_effect))
    return found


def _first_decision(
    values: dict[str, Values], looks: Sequence[int], smallest_effect: float
) -> tuple[str, int]:
    for look in looks:
        curves = {
            name: {seed: [float(v)] for seed, v in enumerate(own[:look])}
            for name, own in values.items()
        }
        results = compare(
            curves,
            higher_is_better=True,
            smallest_effect=smallest_effect,
            sequential=True,
        )
        for result in results[1:]:
            if result.verdict != "undecided":
                return result.verdict, look
    return "undecided", looks[-1]


def repeated_t(differences: Values, looks: Sequence[int]) -> float:
    """Return the share in which Student's t-test rejects at any look."""
    rejected = np.zeros(len(differences), dtype=bool)
    for look in looks:
        part = differences[:, :look]
        sd = np.maximum(part.std(1, ddof=1), 1e-12)
        rejected |= abs(part.mean(1)) / sd * sqrt(look) > t.isf(LEVEL / 2, look - 1)
    return float(rejected.mean())


def miss_of(seeds: int, effect: float, level: float = LEVEL) -> float:
    """Return one minus the power of the t-test with a fixed number of seeds."""
    df, mean = seeds - 1, effect * sqrt(seeds)
    critical = t.isf(level / 2, df)

    def given(scale: float) -> float:  # scale: sample over true standard deviation
        inside = norm.cdf(critical * scale - mean) - norm.cdf(-critical * scale - mean)
        return float(inside * chi.pdf(scale * sqrt(df), df) * sqrt(df))

    # SciPy's noncentral t gives nan where the power is close to one.
    return float(quad(given, 0, 1 + 12 / sqrt(df), epsabs=0, limit=200)[0])


def seeds_for(miss: float, effect: float) -> int:
    """Return the fixed number of seeds with this probability of a miss."""
    return next(n for n in count(2) if miss_of(n, effect) <= miss)


def measure(repeats: int, most: int, step: int) -> dict[str, Any]:
    """Return all shares and mean numbers of seeds."""
    looks = looks_up_to(most, step)
    rates = {}
    for name, draw in KINDS.items():
        values = draw(np.random.default_rng(0), (repeats, most))
        wrong = sum(verdict != "undecided" for verdict, _ in decisions(values, looks))
        rates[name] = {"t": repeated_t(values, looks), "ours": wrong / repeats}
    fewer = max(1, repeats // 4)
    several = {}
    for name in ("normal", "exponential"):
        values = np.stack(
            [
                KINDS[name](np.random.default_rng(seed), (fewer, most))
                for seed in range(METHODS)
            ]
        )
        found = decisions(values, looks_up_to(most, step, METHODS))
        several[name] = sum(v != "undecided" for v, _ in found) / fewer
    power = {}
    for effect in EFFECTS:
        values = np.random.default_rng(1).normal(effect, size=(fewer, most))
        found = decisions(values, looks)
        missed = sum(verdict != "helps" for verdict, _ in found) / fewer
        # The last look alone misses at least as often; so small only for no misses.
        last = max(1e-9, miss_of(most, effect, nominal_level(LEVEL, most)))
        power[str(effect)] = {
            "fixed": {seeds: 1 - miss_of(seeds, effect) for seeds in FIXED},
            "power": 1 - missed,
            "seeds": float(np.mean([seeds for _, seeds in found])),
            "fixed design of equal power": seeds_for(missed or last, effect),
        }
    small = {}
    for effect in SMALL_EFFECTS:
        values = np.random.default_rng(2).normal(effect, size=(fewer, most))
        found = decisions(values, looks, SMALLEST)
        small[str(effect)] = {
            **{
                verdict: sum(v == verdict for v, _ in found) / fewer
                for verdict in ("no difference", "helps", "hurts", "undecided")
            },
            "seeds": float(np.mean([seeds for _, seeds in found])),
        }
    return {"rates": rates, "several": several, "power": power, "small": small}


def show(found: dict[str, Any], console: Console) -> None:
    """Print the tables."""
    table = Table("no difference", "t-test at every look", "until decided")
    for name, rate in found["rates"].items():
        table.add_row(name, f"{rate['t']:.1%}", f"{rate['ours']:.1%}")
    for name, share in found["several"].items():
        table.add_row(f"{name}, {METHODS} methods, any of them", "", f"{share:.1%}")
    console.print(table)
    table = Table("effect (sd)", *(f"power, n = {seeds}" for seeds in FIXED))
    for name in ("power", "mean seeds", "fixed design of equal power"):
        table.add_column(name)
    for effect, own in found["power"].items():
        fixed = [f"{power:.0%}" for power in own["fixed"].values()]
        equal = own["fixed design of equal power"]
        share = f"{equal} ({own['seeds'] / equal:.0%})"
        table.add_row(
            effect, *fixed, f"{own['power']:.1%}", f"{own['seeds']:.1f}", share
        )
    console.print(table)
    names = ("no difference", "helps", "hurts", "undecided")
    table = Table(f"effect (sd; smallest {SMALLEST:g})", *names, "mean seeds")
    for effect, own in found["small"].items():
        shares = (f"{own[name]:.1%}" for name in names)
        table.add_row(effect, *shares, f"{own['seeds']:.1f}")
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=10_000)
    parser.add_argument("--max-seeds", type=int, default=64)
    parser.add_argument("--round", type=int, default=4)
    default = records.RESULTS / "sequential.json"
    parser.add_argument("--json", type=Path, default=default)
    arguments = parser.parse_args()
    results = records.describe_run()
    results |= {
        "repeats": arguments.repeats,
        "level": LEVEL,
        "max_seeds": arguments.max_seeds,
        "round": arguments.round,
    }
    results |= measure(arguments.repeats, arguments.max_seeds, arguments.round)
    records.write(results, arguments.json)
    console = Console()
    show(results, console)
    console.print(records.conditions(results))


if __name__ == "__main__":
    main()
