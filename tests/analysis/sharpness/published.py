"""Measures the sharpness and calibration of docs/analysis.md: evidence/sharpness.json.

``python -m tests.analysis.sharpness.published`` trains and measures again.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from switch_ema.analysis.intervals import interval
from switch_ema.bench.analyses.landscape import TaskLandscape
from switch_ema.bench.analyses.landscape_settings import LandscapeSettings
from switch_ema.bench.report.numbers import fixed
from switch_ema.bench.results.kept_weights import load_kept
from switch_ema.cli import main as command

RESULTS = Path(__file__).parents[3] / "evidence/sharpness.json"
TASKS = ("noisy-digits", "digits")
METHODS = ("plain", "ema", "swa", "switch-ema")
"""The first is the baseline."""
SEEDS = range(7300, 7316)
SHARPNESS = {
    "training loss": 3,
    "top eigenvalue": 2,
    "trace": 1,
    "SAM's ascent": 4,
    "noise": 4,
}
"""Columns of the first table, with their decimals."""
CALIBRATION = {"accuracy": 1, "confidence": 1, "ECE": 1, "ECE at T": 1, "NLL": 3}

Measured = Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]


def measure(seed: int) -> dict[str, dict[str, dict[str, float]]]:
    """Train both tasks with one seed and measure what every method returns."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    with TemporaryDirectory() as folder:
        options = ["--seeds", "1", "--first-seed", str(seed), "--jobs", "1"]
        place = ["--out", folder, "--name", "run"]
        command(["compare", *TASKS, "--methods", *METHODS, *options, *place])
        for kept in load_kept(Path(folder) / "run", METHODS):
            landscape = TaskLandscape(kept, LandscapeSettings())
            for method in METHODS:
                own = found.setdefault(kept.name, {})
                own[method] = _of_method(landscape, method)
    return found


def _of_method(landscape: TaskLandscape, method: str) -> dict[str, float]:
    sharp, _ = landscape.sharpness(method)
    trust = landscape.calibration(method)
    assert trust is not None
    found = {
        "training loss": sharp.loss,
        "top eigenvalue": sharp.eigenvalues[0],
        "trace": sharp.trace.mean,
        "SAM's ascent": sharp.ascent_gap,
        "noise": sharp.relative_noise.mean,
        "accuracy": 100 * trust[0].accuracy,
        "confidence": 100 * trust[0].confidence,
        "ECE": 100 * trust[0].ece,
        "ECE at T": 100 * trust[0].tempered_ece,
        "NLL": trust[0].nll,
    }
    return {name: float(f"{value:.6g}") for name, value in found.items()}


def figures(results: Mapping[str, Any]) -> str:
    """Return the tables of docs/analysis.md as Markdown."""
    tables = (_table(results["tasks"], columns) for columns in (SHARPNESS, CALIBRATION))
    return "\n\n".join(tables)


def _table(tasks: Measured, columns: Mapping[str, int]) -> str:
    lines = [
        f"| task | method | {' | '.join(columns)} |",
        f"| --- | --- |{' ---: |' * len(columns)}",
    ]
    for task, methods in tasks.items():
        base = methods[METHODS[0]]
        for method, values in methods.items():
            cells = (
                _cell(values[name], base[name] if values is not base else None, digits)
                for name, digits in columns.items()
            )
            lines.append(f"| `{task}` | {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(own: Sequence[float], plain: Sequence[float] | None, digits: int) -> str:
    """Write the baseline's mean, or the paired difference from it."""
    if plain is None:
        return fixed(interval(own).mean, digits)
    found = interval(a - b for a, b in zip(own, plain, strict=True))
    mean, low, high = (fixed(end, digits, "+") for end in found[:3])
    text = f"{mean} [{low}, {high}]"
    return f"**{text}**" if found.low > 0 or found.high < 0 else text


def main() -> None:
    torch.set_num_threads(1)
    by_seed = [measure(seed) for seed in SEEDS]
    names = (*SHARPNESS, *CALIBRATION)
    content = {
        "seeds": [*SEEDS],
        "torch": torch.__version__,
        "tasks": {
            task: {
                method: {
                    name: [one[task][method][name] for one in by_seed] for name in names
                }
                for method in METHODS
            }
            for task in TASKS
        },
    }
    RESULTS.write_text(json.dumps(content) + "\n", encoding="utf-8")
    print(figures(content))


if __name__ == "__main__":
    main()
