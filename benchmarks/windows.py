"""How long should an average be? Windows of EMA on one trajectory, and their regret.

    python benchmarks/windows.py [--repeats 16] [--first-seed 7100] [--pilot 8]

Needs MNIST and Fashion-MNIST in the data folder (``switch-ema data``). Every setting is
one stacked training of all seeds; the averages follow it and change nothing.

What is compared, fixed before the first fresh seed was trained:

- **Score**: test accuracy of the averaged weights at the last step, in points. Where
  the data change, the test data are those of the last step.
- **Fixed windows**: the live weights; constants 0.9, 0.97, 0.99, 0.997 and 0.999,
  corrected for their start so that they differ from step 10 on; and ``fraction`` with
  0.02, 0.05, 0.1 and 0.2. A setting's *reference* is the one of them with the highest
  mean score on the pilot seeds (900 to 907), which are used for nothing else but
  choosing.
- **Regret** of a window in a setting: score of the reference minus its own, paired by
  seed, on fresh seeds (7100 and later). It may be negative.
- **Candidates** for ``decay="auto"``, by their mean over all settings of the regret on
  pilot seeds, where no setting counts for more than 2 points. The best one is
  confirmed on fresh seeds.
- **Choice**: ``Windows`` with ``fraction(0.1)``, ``fraction(0.02)`` and the live
  weights, chosen for each seed on 300 held-out examples, whose labels are as noisy as
  those that are trained on.
- **Restarted by hand**: "auto" with ``restart()`` at a sudden change of the data, added
  after the other numbers were known.
- **Rule**: it replaces ``fraction(0.1)`` as "auto" if, on fresh seeds, (1) the mean of
  its regret over the steady settings, where the data do not change, is lower, with a
  97% interval over seeds that excludes zero; (2) its largest regret in a steady setting
  is at most 0.1 points above that of ``fraction(0.1)``; (3) its mean regret over the
  settings whose data change is at most 0.1 points above it.
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import records
import torch
from rich.console import Console
from rich.table import Table
from small_runs import (
    Rates,
    batches,
    correct,
    cosine,
    cycles,
    load_pool,
    make_model,
    make_optimizer,
    percent,
    permuted,
    rotated,
    split,
    stable_then_decay,
    stairs,
    train_step,
)
from torch import Tensor

from switch_ema import EMA, WindowChoice
from switch_ema.analysis.intervals import half_width

LIVE, CHOICE = "live", "choice on held-out data"
RESTARTED = "restarted by hand"
AUTO = "fraction(0.1)"
CHOSEN_FROM = (AUTO, "fraction(0.02)", LIVE)
PILOT = 900
LARGEST = 2.0
"""The most that one setting counts for in the choice of a candidate, in points."""


@dataclass(frozen=True)
class Setting:
    """One kind of training."""

    data: str
    steps: int
    rates: Rates | None = None
    """None: constant."""
    optimizer: str = "sgd"
    rate: float = 0.05
    size: int = 2000
    batch: int = 32
    noise: float = 0.0
    tuned_from: int = 0
    """Steps of training on other data, images turned by 90 degrees, beforehand."""
    turns_at: float = 1.0
    """Share of the run after which images are turned by 90 degrees."""
    permutes_at: float = 1.0
    """Share of the run after which each class has the label of the next."""
    drift: float = 0.0
    """Degrees by which images turn steadily over the run."""

    @property
    def changes_at(self) -> int | None:
        """The first step with other data, if there is a sudden change."""
        share = min(self.turns_at, self.permutes_at)
        return math.ceil(share * self.steps) if share < 1 else None

    @property
    def is_steady(self) -> bool:
        """Whether the data stay as they are."""
        return not self.drift and min(self.turns_at, self.permutes_at) == 1

    def degrees(self, share: float) -> float:
        """Return the rotation of the images."""
        is_turned = self.turns_at < 1 and share >= self.turns_at
        return self.drift * share + (90.0 if is_turned else 0.0)


_NEW_PHASE = 2 / 3


def _two_phases(share: float) -> float:
    """Fall to zero twice: over two thirds of the run, and over the rest."""
    if share < _NEW_PHASE:
        return cosine(share / _NEW_PHASE)
    return cosine((share - _NEW_PHASE) / (1 - _NEW_PHASE))


_ADAMW: dict[str, Any] = {"optimizer": "adamw", "rate": 3e-3}

SETTINGS = {
    "MNIST, 50 steps, cosine": Setting("mnist", 50, cosine),
    "Fashion-MNIST, 50 steps, constant": Setting("fashion_mnist", 50),
    "Fashion-MNIST, AdamW, 200 steps, cosine": Setting(
        "fashion_mnist", 200, cosine, **_ADAMW
    ),
    "digits, 200 steps, constant": Setting("digits", 200, size=1000),
    "Fashion-MNIST, 1,600 steps, cosine": Setting("fashion_mnist", 1600, cosine),
    "Fashion-MNIST, 1,600 steps, constant": Setting("fashion_mnist", 1600),
    "Fashion-MNIST, 1,600 steps, stairs": Setting("fashion_mnist", 1600, stairs),
    "20,000 of Fashion-MNIST, 5,000 steps, constant": Setting(
        "fashion_mnist", 5000, size=20_000
    ),
    "digits, 5,000 steps, constant": Setting("digits", 5000, size=1000),
    "digits, 5,000 steps, cosine": Setting("digits", 5000, cosine, size=1000),
    "noisy digits, 2,000 steps, constant": Setting(
        "digits", 2000, size=1000, noise=0.3
    ),
    "noisy digits, 2,000 steps, cosine": Setting(
        "digits", 2000, cosine, size=1000, noise=0.3
    ),
    "MNIST-1D, AdamW, 2,000 steps, constant": Setting("mnist1d", 2000, **_ADAMW),
    "MNIST-1D, AdamW, 2,000 steps, stable then decay": Setting(
        "mnist1d", 2000, stable_then_decay, **_ADAMW
    ),
    "Fashion-MNIST, four cosines of 400 steps": Setting(
        "fashion_mnist", 1600, cycles(4)
    ),
    "Fashion-MNIST, 3.5 cosines of 400 steps": Setting(
        "fashion_mnist", 1400, cycles(3.5)
    ),
    "MNIST, fine-tuned for 100 steps, cosine": Setting(
        "mnist", 100, cosine, size=500, tuned_from=600
    ),
    "MNIST, fine-tuned for 100 steps, constant": Setting(
        "mnist", 100, rate=0.02, size=500, tuned_from=600
    ),
    "MNIST, turned at half of 1,600 steps": Setting("mnist", 1600, turns_at=0.5),
    "MNIST, turned 200 steps before the end": Setting("mnist", 1000, turns_at=0.8),
    "MNIST, labels permuted at 90% of 1,600 steps": Setting(
        "mnist", 1600, permutes_at=0.9
    ),
    "MNIST, turning steadily, 3,200 steps": Setting("mnist", 3200, drift=180.0),
    "MNIST, two cosines, turned at the second": Setting(
        "mnist", 1200, _two_phases, turns_at=_NEW_PHASE
    ),
}

Schedule = Callable[[int], float]


def corrected(decay: float) -> Schedule:
    """Return a constant decay without the weight of the initial weights."""
    return lambda n: decay * (1 - decay**n) / (1 - decay ** (n + 1))


def follow_rate(rates: Sequence[float], share: float, least: float) -> Schedule:
    """``fraction`` with a share that falls with the learning rate, at most to least."""

    def decay(n: int) -> float:
        largest = max(rates[: n + 1])
        ratio = rates[n] / largest if largest else 1.0
        return float(2 ** (-1 / (share * max(ratio, least) * (n + 1))))

    return decay


def restart_on_jump(
    rates: Sequence[float], share: float, least: float, factor: float = 10.0
) -> Schedule:
    """Like ``follow_rate``, and count from where the rate jumps after it has fallen."""
    first = [0]

    def decay(n: int) -> float:
        fell = n > 0 and rates[n - 1] * factor <= max(rates[:n])
        if fell and rates[n] >= factor * rates[n - 1]:
            first.append(n)
        begin = first[-1]
        return follow_rate(rates[begin:], share, least)(n - begin)

    return decay


FIXED: dict[str, Callable[[Sequence[float]], Any]] = {
    **{
        f"constant {decay}": lambda _, decay=decay: corrected(decay)
        for decay in (0.9, 0.97, 0.99, 0.997, 0.999)
    },
    **{
        f"fraction({share})": lambda _, share=share: f"fraction({share})"
        for share in (0.02, 0.05, 0.1, 0.2)
    },
}
"""Fixed windows beside the live weights; each gets the learning rates of the run."""

CANDIDATES: dict[str, Callable[[Sequence[float]], Any]] = {
    "fraction(0.075)": lambda _: "fraction(0.075)",
    "0.1, follows to 0.2": lambda rates: follow_rate(rates, 0.1, 0.2),
    "0.1, follows to 0.5": lambda rates: follow_rate(rates, 0.1, 0.5),
    "0.075, follows to 0.3": lambda rates: follow_rate(rates, 0.075, 0.3),
    "0.15, follows to 0.2": lambda rates: follow_rate(rates, 0.15, 0.2),
    "0.1, restarts": lambda rates: restart_on_jump(rates, 0.1, 1.0),
    "0.1, follows to 0.2, restarts": lambda rates: restart_on_jump(rates, 0.1, 0.2),
    "0.1, follows to 0.5, restarts": lambda rates: restart_on_jump(rates, 0.1, 0.5),
}
"""Candidates for "auto", beside the fractions: a share of the steps so far that falls
with the learning rate, down to a part of itself; a window that begins again where the
rate jumps."""

Scores = dict[str, dict[str, list[float]]]
"""Scores by setting and window, one per seed."""


def run(setting: Setting, seeds: Sequence[int], shorter: int = 1) -> dict[str, Any]:
    """Train once; return the scores of all windows, one per seed."""
    pool = load_pool(setting.data)
    data = split(pool, seeds, setting.size, setting.noise)
    model = make_model(pool, seeds)
    if setting.tuned_from:
        steps = setting.tuned_from // shorter
        other = split(pool, [seed + 10_000 for seed in seeds], 2000, 0.0)
        optimizer = make_optimizer(setting.optimizer, model, setting.rate)
        for rows in batches(other, seeds, steps, setting.batch):
            x = pool.x[other.train.gather(1, rows)]
            y = other.labels.gather(1, rows)
            train_step(model, optimizer, rotated(x, 90.0), y)
    steps = setting.steps // shorter
    shape = setting.rates or (lambda _: 1.0)
    rates = [setting.rate * shape(step / steps) for step in range(steps)]
    optimizer = make_optimizer(setting.optimizer, model, setting.rate)
    windows = {
        name: EMA(model, optimizer, decay=make(rates))
        for name, make in (FIXED | CANDIDATES).items()
    }
    if setting.changes_at is not None:
        windows[RESTARTED] = EMA(model, optimizer)
    for step, rows in enumerate(batches(data, seeds, steps, setting.batch)):
        share = step / steps
        if setting.changes_at == step * shorter:
            windows[RESTARTED].restart()
        x, y = pool.x[data.train.gather(1, rows)], data.labels.gather(1, rows)
        x = rotated(x, setting.degrees(share)) if x.dim() == 5 else x
        y = permuted(y) if share >= setting.permutes_at else y
        for group in optimizer.param_groups:
            group["lr"] = rates[step]
        train_step(model, optimizer, x, y)

    def measured() -> tuple[Tensor, Tensor]:
        """Return which answers on test and held-out data are right."""
        found = []
        for rows, labels in (
            (data.test, pool.y[data.test]),
            (data.held_out, data.held_out_labels),
        ):
            x = pool.x[rows]
            x = x if setting.is_steady else rotated(x, setting.degrees(1.0))
            y = permuted(labels) if setting.permutes_at < 1 else labels
            found.append(correct(model, x, y))
        return found[0], found[1]

    right = {}
    for name, average in windows.items():
        with average.averaged():
            right[name] = measured()
    right[LIVE] = measured()
    scores = {name: percent(test) for name, (test, _) in right.items()}
    scores[CHOICE] = [
        scores[_choose({name: right[name][1][seed] for name in CHOSEN_FROM})][seed]
        for seed in range(len(seeds))
    ]
    return scores


def _choose(held_out: Mapping[str, Tensor]) -> str:
    return WindowChoice.between(held_out, higher_is_better=True).name


def references(pilot: Scores) -> dict[str, str]:
    """Return the best fixed window of each setting on the pilot seeds."""
    fixed = [LIVE, *FIXED]
    return {
        setting: max(fixed, key=lambda window: fmean(scores[window]))
        for setting, scores in pilot.items()
    }


def regrets(scores: Scores, best: Mapping[str, str], window: str) -> list[list[float]]:
    """Return a window's regret by setting and seed."""
    return [
        [r - own for r, own in zip(of[best[name]], of[window], strict=True)]
        for name, of in scores.items()
    ]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and half the width of its 97% interval."""
    spread = stdev(values) if len(values) > 1 else float("nan")
    return fmean(values), half_width(spread, len(values))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=16, help="fresh seeds")
    parser.add_argument("--first-seed", type=int, default=7100)
    parser.add_argument("--pilot", type=int, default=8, help="pilot seeds")
    parser.add_argument("--settings", nargs="*", default=list(SETTINGS))
    parser.add_argument("--keep", action="store_true", help="the file's other settings")
    parser.add_argument("--shorter", type=int, default=1, help="divide all steps by it")
    parser.add_argument("--json", type=Path, default=records.RESULTS / "windows.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, Any] = records.describe_run()
    known: dict[str, Any] = {}
    if arguments.keep:
        known = json.loads(arguments.json.read_text())
    groups = {"pilot": (PILOT, arguments.pilot)}
    groups["fresh"] = (arguments.first_seed, arguments.repeats)
    for group, (first, count) in groups.items():
        seeds = [*range(first, first + count)]
        kept = known.get(group, {"scores": {}})["scores"]
        results[group] = {"seeds": seeds, "scores": dict(kept)}
        for name in arguments.settings if count else ():
            begin = time.perf_counter()
            scores = run(SETTINGS[name], seeds, arguments.shorter)
            results[group]["scores"][name] = {
                window: [round(value, 3) for value in values]
                for window, values in scores.items()
            }
            print(f"{group}: {name}: {time.perf_counter() - begin:.0f} s", flush=True)
    records.write(results, arguments.json)
    for group in groups:
        if results[group]["scores"]:
            Console().print(overview(results, group))


def overview(results: Mapping[str, Any], group: str) -> Table:
    """Return mean regrets: of pilot seeds to choose by, of fresh ones to report."""
    scores = results[group]["scores"]
    best = references(results["pilot"]["scores"])
    means = ("capped mean", "steady mean", "steady, largest", "changed mean")
    table = Table("window", *means, title=f"regret, {group} seeds")
    for window in next(iter(scores.values())):
        found = summary(scores, best, window)
        table.add_row(window, *(f"{number:.2f}" for number in found))
    return table


def summary(
    scores: Scores, best: Mapping[str, str], window: str
) -> tuple[float, float, float, float]:
    """Return the means that choose a candidate and decide about it."""
    means = dict(zip(scores, map(fmean, regrets(scores, best, window)), strict=True))
    steady = [mean for name, mean in means.items() if SETTINGS[name].is_steady]
    changed = [mean for name, mean in means.items() if not SETTINGS[name].is_steady]
    capped = fmean(min(mean, LARGEST) for mean in means.values())
    return (
        capped,
        fmean(steady or [0.0]),
        max(steady, default=0.0),
        fmean(changed or [0.0]),
    )


if __name__ == "__main__":
    main()
