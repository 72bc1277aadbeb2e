"""Section of Table 1: the paper's ticks and our measurements."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from switch_ema.analysis.method_style import display_name
from switch_ema.bench.analyses.landscape import Flatness, TaskLandscape
from switch_ema.bench.analyses.landscape_settings import LandscapeSettings
from switch_ema.bench.analyses.steps import Contestant, StepCost, measure_steps
from switch_ema.bench.errors import UsageError
from switch_ema.bench.recipe import Metric
from switch_ema.bench.report.numbers import NONE, digits_for, fixed, mean_and_spread
from switch_ema.bench.report.rounding import change_text, rounding_change
from switch_ema.bench.report.sections import AnalysisSection, Sheet
from switch_ema.bench.results.folder import RESULTS, open_run
from switch_ema.bench.results.kept_weights import load_kept
from switch_ema.bench.stats.paired import (
    CONFIDENCE,
    Difference,
    MethodResult,
    compare,
)
from switch_ema.bench.stats.summarize import summarize
from switch_ema.bench.stats.summary import TaskSummary
from switch_ema.bench.stats.verdicts import smallest_effect_of
from switch_ema.bench.text import listed
from switch_ema.paper.reproduce.plan import row_folder
from switch_ema.paper.show.table_section import NOTHING
from switch_ema.paper.tables.properties import ROUNDING, Promise, PropertyTable

PLAIN = "plain"
SHARP_SEEDS = 3
"""Number of seeds for curvature, which takes longer than training."""
HOW = (
    "Gain: over plain training with the task's own optimizer, paired by seed, with its "
    f"{CONFIDENCE} interval, corrected over the methods. Epochs: to reach plain's "
    "final value, median over the seeds that reached it (their number in brackets). "
    "Step: time of a training step relative to plain training, interleaved; memory: "
    "tensors held in a step beyond plain's, in units of the model size. Top and trace: "
    "top eigenvalue and trace of the Hessian of the final training loss; noise: rise "
    "of the training loss under noise of a tenth of the filters. Lower is flatter "
    f"for these three; means over {SHARP_SEEDS} seeds. {ROUNDING}: change of the value "
    f"when the final weights are rounded to it, paired by seed, with its {CONFIDENCE} "
    "interval. Pluggable, free gains, speed-up "
    "and the property are the paper's ticks (yes, no)."
)


@dataclass(frozen=True)
class _Measured:
    """One task: results by method, step costs and flatness."""

    task: str
    metric: Metric
    results: dict[str, MethodResult]
    costs: dict[str, StepCost]
    flatness: dict[str, list[Flatness]]
    rounding: dict[str, Difference | None]
    """Change by rounding the final weights; None where it was not measured."""


def property_section(
    table: PropertyTable, out: Path, scale: str, command: str
) -> AnalysisSection:
    """Measure the trained methods of Table 1 and list them with the ticks."""
    sheets, notes = [], [table.small_note] if scale == "small" else []
    for task in table.tasks:
        runs = _runs(table, task, out, scale)
        if "sgd" not in runs:
            notes.append(f"{task} has not been trained with the current recipes.")
            continue
        missing = [name for name in table.optimizers if name not in runs]
        if missing:
            notes.append(f"{task} has not been trained with {listed(missing)}.")
        measured = _measure(table, task, runs)
        sheets += [_gains(table, measured), _properties(table, measured)]
    if not sheets:
        notes = [NOTHING]
    return AnalysisSection(
        key=table.name,
        title=f"Table 1: {table.title}",
        command=command,
        paragraphs=[*notes, *([HOW] if sheets else [])],
        sheets=sheets,
    )


def _runs(
    table: PropertyTable, task: str, out: Path, scale: str
) -> dict[str, tuple[Path, TaskSummary]]:
    """Load the stored results of a task, by optimizer."""
    found = {}
    for optimizer in table.optimizers:
        row = next(r for r in table.rows if r.name == f"{task}-{optimizer}")
        folder = row_folder(out, table, row, scale)
        if not (folder / RESULTS).is_file():
            continue
        config, results = open_run(folder)
        with closing(results):
            tasks = summarize(config, results, folder.name).tasks
        if tasks:
            found[optimizer] = folder, tasks[0]
    return found


def _measure(
    table: PropertyTable, task: str, runs: dict[str, tuple[Path, TaskSummary]]
) -> _Measured:
    metric = runs["sgd"][1].metrics[0]
    curves = {PLAIN: runs["sgd"][1].curves[metric.name][PLAIN]}
    trained: list[Promise] = []
    for promise in table.promises:
        if promise.optimizer in runs:
            own = runs[promise.optimizer][1].curves[metric.name]
            if promise.label in own:
                curves[promise.method] = own[promise.label]
                trained.append(promise)
    results = compare(
        curves,
        higher_is_better=metric.higher_is_better,
        baseline=PLAIN,
        smallest_effect=smallest_effect_of(metric),
        sequential=any(task.sequential for _, task in runs.values()),
    )
    contestants = [Contestant(PLAIN, table.optimizers["sgd"], PLAIN)]
    contestants += [
        Contestant(p.method, table.optimizers[p.optimizer], p.label) for p in trained
    ]
    name = runs["sgd"][1].task
    flatness = {PLAIN: [*_flatness(runs["sgd"][0], PLAIN)]}
    rounding = {PLAIN: _change(runs["sgd"][1], PLAIN)}
    for promise in trained:
        folder, summary = runs[promise.optimizer]
        flatness[promise.method] = [*_flatness(folder, promise.label)]
        rounding[promise.method] = _change(summary, promise.label)
    return _Measured(
        task,
        metric,
        {result.method: result for result in results},
        measure_steps(name, contestants),
        flatness,
        rounding,
    )


def _change(task: TaskSummary, label: str) -> Difference | None:
    """Compare a method's final weights before and after rounding."""
    if ROUNDING not in task.roundings:
        return None  # trained before the table had the column
    return rounding_change(task, label, ROUNDING)


def _flatness(folder: Path, label: str) -> Iterator[Flatness]:
    """Measure the kept weights of the first seeds, without diverged ones."""
    config, results = open_run(folder)
    results.close()
    settings = LandscapeSettings()
    for seed in range(config.first_seed, config.first_seed + config.seeds)[
        :SHARP_SEEDS
    ]:
        try:
            (kept,) = load_kept(folder, (label,), "cpu", seed=seed)
        except UsageError:
            continue
        if label in kept.weights and kept.is_finite(label):
            yield TaskLandscape(kept, settings).flatness(label)


def _gains(table: PropertyTable, found: _Measured) -> Sheet:
    digits = max(1, digits_for(found.results.values()))
    rows = [_gain_row(PLAIN, found, digits, ["", "", ""])]
    for promise in table.promises:
        if promise.method in found.results:
            ticks = (promise.pluggable, promise.free_gains, promise.speed_up)
            answers = ["yes" if tick else "no" for tick in ticks]
            rows.append(_gain_row(promise.method, found, digits, answers))
    return Sheet(
        caption=f"{found.task}: the paper's ticks (first three columns), gain and "
        f"speed in {found.metric.name}",
        header=[
            *("method", "plug- gable", "free gains", "speed- up"),
            *("ours", "gain", f"{CONFIDENCE} CI", "n", "verdict", "epochs"),
        ],
        rows=rows,
    )


def _gain_row(
    method: str, found: _Measured, digits: int, ticks: Sequence[str]
) -> list[str]:
    result = found.results[method]
    gain, speed = result.difference, result.speed_up
    interval = NONE
    if gain is not None and gain.sd:
        low, high = (fixed(end, digits, "+") for end in (gain.low, gain.high))
        interval = f"[{low}, {high}]"
    reached = NONE
    if speed is not None:
        epochs = NONE if speed.epochs is None else f"{speed.epochs:g}"
        reached = f"{epochs} ({speed.reached}/{speed.n})"
    return [
        display_name(method),
        *ticks,
        mean_and_spread(result.last, digits),
        NONE if gain is None else fixed(gain.mean, digits, "+"),
        interval,
        str(result.last.n),
        result.verdict,
        reached,
    ]


def _properties(table: PropertyTable, found: _Measured) -> Sheet:
    properties = {promise.method: promise.property for promise in table.promises}
    plain = found.costs[PLAIN]
    digits = max(1, digits_for(found.results.values()))
    rows = []
    for method, cost in found.costs.items():
        flat = found.flatness[method]
        extra = (cost.bytes - plain.bytes) / plain.weights
        rows.append(
            [
                display_name(method),
                properties.get(method, ""),
                f"{cost.seconds / plain.seconds:.2f} x",
                f"{extra:+.1f}" if method != PLAIN else "0",
                *(
                    f"{fmean(getattr(one, name) for one in flat):.3g}" if flat else NONE
                    for name in ("loss", "top", "trace", "noise")
                ),
                change_text(found.rounding[method], digits),
            ]
        )
    return Sheet(
        caption=f"{found.task}: the paper's property, cost of a step, and final "
        "sharpness of the training loss",
        header=[
            *("method", "property", "step", "memory"),
            *("training loss", "top", "trace", "noise", ROUNDING),
        ],
        rows=rows,
    )
