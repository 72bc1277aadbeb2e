"""Section of an ablation: our table, the settings within noise, a figure."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from switch_ema.bench.report.numbers import NONE, digits_of, fixed, with_unit
from switch_ema.bench.report.sections import FIGURES, AnalysisSection, Picture, Sheet
from switch_ema.bench.stats.paired import LEVEL, MethodResult
from switch_ema.bench.stats.summary import TaskSummary
from switch_ema.bench.text import counted, listed
from switch_ema.paper.reproduce.collect import ReproducedRow
from switch_ema.paper.show.ablation_points import AblationPoint, points_of
from switch_ema.paper.show.gains import MeasuredMetric, measured_metrics
from switch_ema.paper.show.table_section import digits_in, reproduction_section
from switch_ema.paper.tables.ablations import Ablation

if TYPE_CHECKING:
    from switch_ema.paper.show.ablation_figure import Panel

_HEAT_MAP = (
    "Gains over the setting that the paper recommends, with their intervals, "
    "each in the unit of its metric. The colour is the gain in half widths: pale cells "
    "are within noise. ~ best: not distinguishable from the best setting. The cell of "
    "the recommended setting shows its mean."
)
CURVES = (
    "Lines: mean over seeds at the last epoch. Bands: one standard error to each side. "
    "Filled markers: not distinguishable from the best setting of the method; hollow "
    "ones are worse. Dotted: plain training."
)


def ablation_section(
    table: Ablation,
    rows: Sequence[ReproducedRow],
    *,
    scale: str,
    command: str,
    folder: Path,
) -> AnalysisSection:
    """Build our table, the settings within noise, and a figure.

    Args:
        table: the ablation.
        rows: its stored rows.
        scale: small or paper.
        command: the command that reproduces the section.
        folder: parent of the folder of figures.
    """
    section = reproduction_section(table, rows, scale=scale, command=command)
    found = [(row, measured_metrics(row)[0]) for row in rows]
    points = [points_of(table, row.task, measured.ours) for row, measured in found]
    if not any(points):
        return section
    lines = [
        line
        for (row, measured), own in zip(found, points, strict=True)
        for name, settings in own.items()
        for line in [_noise(table, row, measured, name, settings)]
    ]
    sheet = Sheet(
        caption="Settings that acted, compared with the best (paired t-test at "
        f"{LEVEL:g}, not corrected)",
        header=["row, method", "best", "ours", "n", "not distinguishable", "worse"],
        rows=lines,
    )
    first, *others = section.sheets
    return replace(
        section,
        paragraphs=[*section.paragraphs, _headline(table, points)],
        sheets=[first, sheet, *others],
        pictures=[_picture(table, found, points, folder)],
    )


def _noise(
    table: Ablation,
    row: ReproducedRow,
    measured: MeasuredMetric,
    name: str,
    points: Sequence[AblationPoint],
) -> list[str]:
    best = next(point for point in points if point.is_best)
    others = [point for point in points if not point.is_best]
    groups = [
        [f"{p.value:g}" for p in others if p.within_noise is wanted]
        for wanted in (True, False)
    ]
    if any(point.within_noise is None for point in others):
        groups[0].append("too few seeds")
    return [
        f"{row.row.title}, {name}",
        f"{table.symbol} = {best.value:g}",
        fixed(best.mean, digits_in(measured)),
        str(best.n),
        *(", ".join(group) or NONE for group in groups),
    ]


def _headline(table: Ablation, points: Sequence[dict[str, list[AblationPoint]]]) -> str:
    """Count how often each setting was the best or within noise of it."""
    families = [own for task in points for own in task.values()]
    by_value: dict[float, list[bool]] = {}
    for family in families:
        for point in family:
            if point.within_noise is not None:
                by_value.setdefault(point.value, []).append(point.within_noise)
    parts = [
        f"{table.symbol} = {value:g} in {sum(known)} of {len(known)}"
        for value, known in sorted(by_value.items())
    ]
    curves = counted(len(families), "curve")
    return (
        f"Best or not distinguishable from the best, in the {curves} of a method on a "
        f"task: {listed(parts)}."
    )


def _picture(
    table: Ablation,
    found: Sequence[tuple[ReproducedRow, MeasuredMetric]],
    points: Sequence[dict[str, list[AblationPoint]]],
    folder: Path,
) -> Picture:
    # matplotlib takes a second to import, and tables do not need it.
    from switch_ema.paper.show.ablation_figure import Panel

    panels = [
        Panel(
            title=row.row.title.partition(":")[0],
            metric=with_unit(measured.ours),
            higher_is_better=measured.ours.higher_is_better,
            digits=digits_in(measured),
            points=own,
            baseline=_without_option(table, measured.results),
        )
        for (row, measured), own in zip(found, points, strict=True)
        if own
    ]
    return _drawn(table, panels, folder, table.name)


def draw_ablation(
    table: Ablation,
    tasks: Sequence[tuple[str, TaskSummary]],
    methods: tuple[str, ...],
    folder: Path,
    name: str,
) -> Picture | None:
    """Draw tasks of any runs like an ablation; None if nothing is varied.

    Args:
        table: the varied option and the kind of figure.
        tasks: panel titles and results.
        methods: method names without options; empty: all.
        folder: parent of the folder of figures.
        name: file name without extension.
    """
    from switch_ema.paper.show.ablation_figure import Panel

    panels = []
    for title, task in tasks:
        metric = task.metrics[0]
        results = task.results[metric.name]
        points = points_of(table, task, metric)
        points = {m: own for m, own in points.items() if not methods or m in methods}
        if points:
            panels.append(
                Panel(
                    title=title,
                    metric=with_unit(metric),
                    higher_is_better=metric.higher_is_better,
                    digits=digits_of(metric, results),
                    points=points,
                    baseline=_without_option(table, results),
                )
            )
    return _drawn(table, panels, folder, name) if panels else None


def _drawn(
    table: Ablation, panels: "Sequence[Panel]", folder: Path, name: str
) -> Picture:
    from switch_ema.analysis.matplotlib_style import save_figure
    from switch_ema.paper.show.ablation_figure import draw_curves, draw_heat_map

    is_map = table.shown == "heat map"
    figure = draw_heat_map(panels, table.symbol) if is_map else draw_curves(panels)
    save_figure(figure, folder / FIGURES, name)
    return Picture(
        name=name,
        caption=_HEAT_MAP if is_map else CURVES,
        alternative=f"{table.title}: {table.shown} of {counted(len(panels), 'task')}",
    )


def _without_option(
    table: Ablation, results: Sequence[MethodResult]
) -> tuple[float, float] | None:
    """Return mean and standard error of the method without the option."""
    for result in results:
        if table.setting_of(result.method) is None:
            last = result.last
            return last.mean, (last.sd or 0.0) / max(last.n, 1) ** 0.5
    return None
