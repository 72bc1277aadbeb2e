"""The section of a page that shows decision boundaries."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from switch_ema.analysis.boundary.figure import draw_boundaries, draw_measures
from switch_ema.analysis.boundary.summary import MEASURES, summarize
from switch_ema.analysis.intervals import Interval
from switch_ema.analysis.matplotlib_style import save_figure
from switch_ema.analysis.method_style import display_name
from switch_ema.bench.analyses.boundary import BoundaryComparison
from switch_ema.bench.report.numbers import NONE, fixed
from switch_ema.bench.report.sections import FIGURES, AnalysisSection, Picture, Sheet

SHOWN = ("accuracy", "calibration_error", "width", "local_width", "roughness", "length")
TABLE_HEADER = (
    *("measure", "method", "mean", "95% CI", "n"),
    *("difference", "95% CI", "n"),
)
DEFINITIONS = (
    "Width: mean distance, across the boundary, between the confidences of 25% and "
    "75%; only of seeds that reach both. Local width: the same from the slope at the "
    "boundary, for every seed that has one. Roughness: how much the boundary turns "
    "back and forth per unit of length; lines and circles have none. Calibration "
    "error: mean distance of accuracy and confidence on the test points, over 10 bins. "
    "A wide boundary may be a robust one or one that is not trained to the end: see "
    "the accuracy."
)


def boundary_section(comparison: BoundaryComparison, folder: Path) -> AnalysisSection:
    """Draw a comparison and put it into words; pictures go below the folder."""
    name = comparison.task.partition(":")[0]
    seeds = len(comparison.seeds)
    save_figure(
        draw_boundaries(
            comparison.methods,
            x=comparison.x,
            y=comparison.y,
            x_test=comparison.x_test,
            grid=comparison.grid,
        ),
        folder / FIGURES,
        f"boundary-{name}",
    )
    measures = f"boundary-{name}-measures"
    save_figure(draw_measures(comparison.methods), folder / FIGURES, measures)
    methods = ", ".join(display_name(method.method) for method in comparison.methods)
    return AnalysisSection(
        key=f"boundary-{name}",
        title=f"Boundaries on {comparison.task}",
        command=shlex.join(
            ["switch-ema", "boundary", comparison.task, "--seeds", str(seeds)]
        ),
        paragraphs=[DEFINITIONS, *comparison.problems],
        pictures=[
            Picture(
                name=f"boundary-{name}",
                caption=f"Seed {comparison.seeds[0]} of {seeds}, after "
                f"{comparison.epochs} epochs: labelled points (triangles), test points "
                "by confidence, the boundary (bold), 25% and 75% confidence (thin).",
                alternative=f"Decision boundaries of {methods}",
            ),
            Picture(
                name=measures,
                caption=f"All {seeds} seeds: each dot is a seed, bars are 95% "
                "intervals of the mean and of the paired difference to the first.",
                alternative="Accuracy, width and calibration of every seed and method",
            ),
        ],
        sheets=[
            Sheet(
                caption="Mean over seeds and paired difference to the first method, "
                "each with its 95% interval, not corrected for their number. Accuracy "
                "and calibration error in percent, lengths in units of the data, "
                "roughness in radians per unit.",
                header=list(TABLE_HEADER),
                rows=[list(row) for row in table_rows(comparison)],
            )
        ],
    )


def table_rows(
    comparison: BoundaryComparison, measures: Sequence[str] = SHOWN
) -> list[tuple[str, ...]]:
    """Spell the comparison for a table with ``TABLE_HEADER``, measure by measure.

    n counts the seeds that have a value. Differences are to the baseline, of the seeds
    where both have one: the pairs.
    """
    rows: list[tuple[str, ...]] = []
    for measure, method, value, paired in summarize(comparison.methods, measures):
        digits = 2 if MEASURES[measure] == "%" else 3
        row = (measure.replace("_", " "), method, *_spelled(value, digits))
        if paired is None:
            rows.append((*row, "baseline", "", ""))
        else:
            rows.append((*row, *_spelled(paired, digits, "+")))
    return rows


def _spelled(found: Interval, digits: int, sign: str = "") -> tuple[str, str, str]:
    low, high = (fixed(end, digits, sign) for end in (found.low, found.high))
    known = NONE if NONE in (low, high) else f"{low} to {high}"
    return fixed(found.mean, digits, sign), known, str(found.n)
