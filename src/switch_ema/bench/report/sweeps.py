"""Settings side by side: a table of value by method, sentences and a figure."""

from switch_ema.analysis.intervals import half_width
from switch_ema.analysis.method_style import display_name
from switch_ema.bench.recipe import Metric
from switch_ema.bench.report.figures import (
    Figure,
    Json,
    PageStyles,
    band_and_line,
    plain,
)
from switch_ema.bench.report.numbers import (
    NONE,
    difference_unit,
    digits_of,
    fixed,
    mean_and_spread,
    shortened,
    typographic,
    with_unit,
)
from switch_ema.bench.report.rows import interval_of, qualified
from switch_ema.bench.report.sections import Sheet
from switch_ema.bench.report.verdict_text import Spell, headline
from switch_ema.bench.spec import read_value
from switch_ema.bench.stats.paired import (
    CONFIDENCE,
    LEVEL,
    Difference,
    MethodResult,
    Summary,
)
from switch_ema.bench.stats.summary import Sweep
from switch_ema.bench.stats.sweeps import (
    Survival,
    best_points,
    compare_bests,
    methods_of,
    result_of,
    survivals,
)
from switch_ema.bench.stats.verdicts import Verdict
from switch_ema.bench.text import counted, listed, printable

BEST = "*"
"""Marks the best setting of a method."""

_OUTCOMES: dict[str, tuple[Verdict, str]] = {
    "survives": ("helps", "The gain of {} survives tuning"),
    "does not survive": (
        "no difference",
        "The gain of {} does not survive tuning",
    ),
    "turns into a loss": ("hurts", "Tuning turns the gain of {} into a loss"),
    "appears": (
        "helps",
        "{} gains if every method is tuned; untuned, no gain was found",
    ),
    "no gain": ("no difference", "{} has no gain that could survive tuning"),
    "undecided": ("undecided", "Undecided whether {} gains if every method is tuned"),
}
"""Verdict, which sets the colour, and wording of each outcome of tuning."""


def sweep_title(sweep: Sweep) -> str:
    """Return what is varied on a task."""
    if sweep.is_tuned:
        return printable(f"{sweep.task}: untuned and tuned")
    option = sweep.points[0].point.partition(" = ")[0]
    return printable(f"{sweep.task}: {option} at {counted(len(sweep.points), 'value')}")


def sweep_sheets(sweep: Sweep, spell: Spell = str) -> list[Sheet]:
    """Build the tables of a sweep: values, and differences at the same setting."""
    if sweep.is_tuned:
        return [_tuned_sheet(sweep, spell)]
    option = sweep.points[0].point.partition(" = ")[0]
    methods, digits = methods_of(sweep), _digits(sweep)
    best = {} if sweep.varies_task else best_points(sweep)
    values, differences = [], []
    for point in sweep.points:
        found = [result_of(point, method) for method in methods]
        name = point.point.partition(" = ")[2]
        marks = [f" {BEST}" if best.get(m) is point else "" for m in methods]
        cells = [_value(r.last if r else None, digits) for r in found]
        values.append([name, *(c + m for c, m in zip(cells, marks, strict=True))])
        shifts = [_difference(r.difference if r else None, digits) for r in found[1:]]
        differences.append([name, *shifts])
    metric = sweep.points[0].metrics[0]
    sheets = [
        Sheet(
            caption=(
                f"{with_unit(metric)} at the last epoch: mean ± standard deviation, "
                f"{_n(sweep)}."
                + (f" {BEST} marks the best {option} of each method." if best else "")
            ),
            header=[option, *map(spell, methods)],
            rows=values,
        )
    ]
    if len(methods) > 1:
        caption = (
            f"Difference from {spell(methods[0])} at the same {option} "
            f"[{CONFIDENCE} interval, corrected over the methods]"
            f"{_in_unit(metric)}: positive is better."
        )
        sheets.append(
            Sheet(
                caption=caption,
                header=[option, *map(spell, methods[1:])],
                rows=differences,
            )
        )
    return sheets


def sweep_sentences(sweep: Sweep, spell: Spell = str) -> list[tuple[Verdict, str]]:
    """Summarize the settings, or the effect of tuning, with verdicts."""
    if sweep.is_tuned:
        told = [_told(survival, sweep, spell) for survival in survivals(sweep)]
        return told + [("baseline", text) for text in _places(sweep, spell)]
    lines: list[tuple[Verdict, str]] = [
        ("baseline", f"{p.point}: {headline(p, spell)}") for p in sweep.points
    ]
    if sweep.varies_task:
        return [(verdict, printable(text)) for verdict, text in lines]
    best = best_points(sweep)
    digits, metric = _digits(sweep), sweep.points[0].metrics[0]
    results = compare_bests(sweep)
    for result in results[1:]:
        if result.difference is not None:
            lines.append(
                (
                    result.verdict,
                    f"Each at its best setting, {spell(results[0].method)} at "
                    f"{best[results[0].method].point} and {spell(result.method)} at "
                    f"{best[result.method].point}: "
                    f"{_difference(result.difference, digits)}"
                    f"{_in_unit(metric)}: {qualified(result, metric)}.",
                )
            )
    if results[1:]:
        option = sweep.points[0].point.partition(" = ")[0]
        lines.append(
            (
                "baseline",
                "The best values were chosen on the test data, which is optimistic; "
                f"--tune {option}=... chooses on held-out data.",
            )
        )
    return [(verdict, printable(text)) for verdict, text in lines]


def sweep_figure(sweep: Sweep, styles: PageStyles, key: str) -> Figure | None:
    """Plot the metric against the option, one line per method, with intervals."""
    if sweep.is_tuned:
        return None
    option = sweep.points[0].point.partition(" = ")[0]
    texts = [point.point.partition(" = ")[2] for point in sweep.points]
    numbers = [read_value(text) for text in texts]
    is_logarithmic = all(type(n) in (int, float) and n > 0 for n in numbers)
    x: list[float] | list[str] = numbers if is_logarithmic else texts
    metric, digits = sweep.points[0].metrics[0], _digits(sweep)
    traces: list[Json] = []
    methods = methods_of(sweep)
    for method in methods:
        found = [result_of(point, method) for point in sweep.points]
        summaries = [r.last if r else Summary(float("nan"), None, 0) for r in found]
        hover = [
            typographic(f"{p.point}: {_value(s, digits)}, n = {s.n}")
            for p, s in zip(sweep.points, summaries, strict=True)
        ]
        means, halves = [s.mean for s in summaries], [_half(s) for s in summaries]
        traces += band_and_line(
            method, styles[method], x, means, halves, hover, markers=True
        )
    x_axis: Json = {"title": {"text": plain(option)}}
    if is_logarithmic:
        x_axis |= {"type": "log", "tickvals": x, "ticktext": texts}
    else:
        x_axis |= {"type": "category"}
    name = plain(shortened(with_unit(metric), 40))
    return Figure(
        id=key,
        caption=(
            f"Lines: mean {metric.name} over seeds at the last epoch. Bands: "
            f"{CONFIDENCE} interval of the mean, {_n(sweep)}."
        ),
        alternative=f"Line chart of {with_unit(metric)} against {option}, one line per "
        "method; the table below has the numbers.",
        height=360,
        traces=traces,
        layout={"xaxis": x_axis, "yaxis": {"title": {"text": name}}},
        legend=[(display_name(method), styles[method]) for method in methods],
    )


def _tuned_sheet(sweep: Sweep, spell: Spell) -> Sheet:
    metric, digits = sweep.points[0].metrics[0], _digits(sweep)
    rows = []
    for method in methods_of(sweep):
        found = [result_of(point, method) for point in sweep.points]
        chosen = sweep.points[-1].settings.get(method, method)
        values = [_value(r.last if r else None, digits) for r in found]
        shifts = [_difference(r.difference if r else None, digits) for r in found]
        rows.append([spell(method), chosen, *values, *shifts])
    titles = [point.point for point in sweep.points]
    baseline = spell(methods_of(sweep)[0])
    return Sheet(
        caption=(
            f"{with_unit(metric)} on seeds not used for tuning: mean ± standard "
            f"deviation; differences from {baseline}, tuned vs "
            f"tuned and untuned vs untuned [{CONFIDENCE} interval, corrected over the "
            "methods]"
            f"{_in_unit(metric)}: positive is better, {_n(sweep)}."
        ),
        header=[
            "method",
            "chosen",
            *titles,
            *(f"difference, {title}" for title in titles),
        ],
        rows=rows,
    )


def _told(survival: Survival, sweep: Sweep, spell: Spell) -> tuple[Verdict, str]:
    """State whether a gain survives tuning."""
    metric, digits = sweep.points[0].metrics[0], _digits(sweep)
    verdict, words = _OUTCOMES[survival.outcome]
    before, after = survival.untuned, survival.tuned
    unit = difference_unit(metric)
    text = (
        f"{words.format(spell(survival.method))}: {_difference(after, digits)}"
        f"{f' {unit}' if unit else ''} {metric.name} over "
        f"{spell(survival.baseline)} with every method tuned on held-out data, "
        f"{_difference(before, digits)} untuned "
        f"(n = {after.n if after else 0} fresh seeds)."
    )
    return verdict, printable(text)


def _places(sweep: Sweep, spell: Spell) -> list[str]:
    """Name the methods that tuning left as they were, or at an end of its values."""
    sentences = []
    for place, words in (
        ("as given", "Tuning kept the given {option} of {names}."),
        (
            "smallest",
            "For {names} tuning chose the smallest {option} it tried; an even "
            "smaller one may be better.",
        ),
        (
            "largest",
            "For {names} tuning chose the largest {option} it tried; an even "
            "larger one may be better.",
        ),
    ):
        for option, places in sweep.places.items():
            names = [spell(method) for method, own in places.items() if own == place]
            if names:
                text = words.format(option=option, names=listed(names))
                sentences.append(printable(text))
    return sentences


def _digits(sweep: Sweep) -> int:
    metric = sweep.points[0].metrics[0]
    results: list[MethodResult] = []
    for point in sweep.points:
        results += point.results[metric.name]
    return digits_of(metric, results)


def _half(summary: Summary) -> float:
    """Return the half width of a mean's interval; 0 if there is none."""
    return half_width(summary.sd, summary.n, LEVEL) if summary.sd is not None else 0.0


def _value(summary: Summary | None, digits: int) -> str:
    if summary is None or not summary.n:
        return NONE
    return mean_and_spread(summary, digits)


def _difference(difference: Difference | None, digits: int) -> str:
    if difference is None:
        return NONE
    mean = fixed(difference.mean, digits, "+")
    if not difference.sd:
        return mean
    return f"{mean} {interval_of(difference, digits)}"


def _in_unit(metric: Metric) -> str:
    unit = difference_unit(metric)
    return f" in {unit}" if unit else ""


def _n(sweep: Sweep) -> str:
    counts = {
        result.last.n
        for point in sweep.points
        for result in point.results[point.metrics[0].name]
    }
    if len(counts) == 1:
        return f"n = {counts.pop()}"
    return f"n = {min(counts)} to {max(counts)}"
