"""The section of a page that shows decision boundaries."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from switch_ema.analysis.boundary.figure import draw_boundaries, draw_measures
from switch_ema.analysis.boundary.summary import MEASURES, summarize
from switch_ema.analysis.intervals import CONFIDENCE, Interval
from switch_ema.analysis.matplotlib_style import save_figure
from switch_ema.analysis.method_style import display_name
from switch_ema.bench.analyses.boundary import BoundaryComparison
from switch_ema.bench.report.numbers import NONE, fixed
from switch_ema.bench.report.sections import FIGURES, AnalysisSection, Picture, Sheet

SHOWN = ("accuracy", "calibration_error", "width", "local_width", "roughness", "length")
TABLE_HEADER = (
    *("measure", "method", "mean", f"{CONFIDENCE} CI", "n"),
    *("difference", f"{CONFIDENCE} CI", "n"),
)
_DEFINITIONS = (
    "Width: mean distance, across the boundary, between 25% and 75% confidence, over "
    "the seeds that reach both. Local width: the same, estimated from the slope at the "
    "boundary, for every seed that has one. Roughness: how much the boundary wiggles "
    "per unit length; 0 for lines and circles. Calibration error: mean gap "
    "between accuracy and confidence on the test points, over 10 bins. A wide boundary "
    "can mean robustness or unfinished training: check the accuracy."
)


def boundary_section(comparison: BoundaryComparison, folder: Path) -> AnalysisSection:
    """Build the section of a comparison; pictures are saved in the folder."""
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
        paragraphs=[_DEFINITIONS, *comparison.problems],
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
                caption=f"All {seeds} seeds, one dot each; bars are {CONFIDENCE} "
                "intervals of the mean and of the paired difference from the first "
                "method.",
                alternative="Accuracy, width and calibration of every seed and method",
            ),
        ],
        sheets=[
            Sheet(
                caption="Mean over seeds and paired difference from the first method, "
                f"with {CONFIDENCE} intervals, not corrected for multiple comparisons. "
                "Accuracy and calibration error in percent, lengths in units of the "
                "data, roughness in radians per unit.",
                header=list(TABLE_HEADER),
                rows=[list(row) for row in table_rows(comparison)],
            )
        ],
    )


def table_rows(
    comparison: BoundaryComparison, measures: Sequence[str] = SHOWN
) -> list[tuple[str, ...]]:
    """Format the table rows for ``TABLE_HEADER``, one per measure and method.

    n counts the seeds with a value. Differences from the baseline use the seeds in
    which both have one.
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
