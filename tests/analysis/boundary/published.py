"""Measures the boundaries of docs/analysis.md: evidence/boundary.json.

``python -m tests.analysis.boundary.published`` trains them again.
"""

import json
from collections.abc import Mapping
from math import isfinite, nan
from pathlib import Path
from typing import Any

import torch

from switch_ema.analysis.intervals import interval
from switch_ema.bench.analyses.boundary import compare_boundaries
from switch_ema.bench.report.numbers import fixed

RESULTS = Path(__file__).parents[3] / "evidence/boundary.json"
SEEDS = 24
OPTIONS = "lr=0.1,momentum=0.9,batch=5"
DEFAULT = ("plain", "ema", "switch-ema")
LONG = ("plain", "ema:decay=0.99", "switch-ema:decay=0.99")
TASKS = {
    "circles": DEFAULT,
    "moons": DEFAULT,
    f"circles:{OPTIONS}": LONG,
    f"moons:noise=0.2,{OPTIONS}": LONG,
}
"""The methods of each task; the first is the baseline."""
MEASURES = {"accuracy": 2, "local_width": 3, "roughness": 3}
"""The measures, with the decimals of their table."""


def measured(task: str) -> dict[str, dict[str, list[float | None]]]:
    """Train a task and return its measures by method, one value per seed."""
    found = compare_boundaries(task, TASKS[task], SEEDS)
    return {
        method.method: {
            measure: [
                round(value, 6) if isfinite(value) else None
                for value in map(float, method.values(measure))
            ]
            for measure in MEASURES
        }
        for method in found.methods
    }


def figures(results: Mapping[str, Any]) -> str:
    """Return the table of docs/analysis.md as Markdown."""
    names = [measure.replace("_", " ") for measure in MEASURES]
    lines = [
        f"| task | method | {' | '.join(names)} |",
        "| --- | --- | --- | --- | --- |",
    ]
    for task, methods in results["tasks"].items():
        base, *_ = methods.values()
        for method, values in methods.items():
            cells = [_cell(values, base, measure) for measure in MEASURES]
            lines.append(f"| `{task}` | {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(values: Mapping[str, Any], base: Mapping[str, Any], measure: str) -> str:
    """Write the baseline's mean, or the paired difference from it."""
    digits = MEASURES[measure]
    own, plain = (
        [nan if one is None else one for one in of[measure]] for of in (values, base)
    )
    if values is base:
        found = interval(own)
        text = fixed(found.mean, digits)
    else:
        found = interval(a - b for a, b in zip(own, plain, strict=True))
        mean, low, high = (fixed(end, digits, "+") for end in found[:3])
        text = f"{mean} [{low}, {high}]"
        if found.low > 0 or found.high < 0:
            text = f"**{text}**"
    return text if found.n == len(own) else f"{text}, n = {found.n}"


def main() -> None:
    torch.set_num_threads(1)
    content = {
        "seeds": SEEDS,
        "torch": torch.__version__,
        "tasks": {task: measured(task) for task in TASKS},
    }
    RESULTS.write_text(json.dumps(content) + "\n", encoding="utf-8")
    print(figures(content))


if __name__ == "__main__":
    main()
