"""Verdicts as sentences, worded the same in every report.

``spell`` maps a method's typed name to the displayed one: terminals show what can be
typed, pages show display names.
"""

from collections.abc import Callable
from dataclasses import replace
from math import floor, isnan, log10

from switch_ema.bench.method_names import uses_held_out
from switch_ema.bench.recipe import Metric
from switch_ema.bench.report.numbers import difference_unit, digits_of, fixed
from switch_ema.bench.report.rows import baseline_of
from switch_ema.bench.spec import SHARE, parse_method_spec
from switch_ema.bench.stats.paired import (
    CONFIDENCE,
    FEWEST,
    LEVEL,
    POWER,
    Difference,
    MethodResult,
    head_to_head,
    verdict_of,
)
from switch_ema.bench.stats.skewed import ALLOWED_FROM
from switch_ema.bench.stats.summary import TaskSummary
from switch_ema.bench.text import counted, listed, printable

Spell = Callable[[str], str]

# Most important to the reader first; the baseline has no verdict.
_ORDER = ("helps", "hurts", "no difference found", "too few seeds")

RULE = (
    "How verdicts are reached: each method is compared with the baseline at the last "
    "epoch by a two-sided paired t-test over seeds; p-values are Holm-corrected over "
    f"the methods, and p < {LEVEL:g} with at least {FEWEST} pairs of seeds counts as a "
    "difference. If the differences vary by less than the metric can resolve, such as "
    "one test sample, an exact sign test replaces the t-test; if there are at least "
    f"{ALLOWED_FROM} pairs and a long tail opposite in sign to the mean, the test is "
    "adjusted for skew (Hall's transformation). "
    f"Intervals are {CONFIDENCE} confidence intervals of the mean difference, "
    "corrected like the p-values: an interval that excludes zero is a difference. The "
    "head-to-head of Switch EMA and EMA is a separate test and is not corrected. "
    "Speed-up: epochs the baseline needed to reach its own final value, divided by "
    "the epochs the method needed to reach it; medians over the seeds that reached it "
    "(7/8: 7 of 8 seeds)."
)


def best_sentence(task: TaskSummary, spell: Spell = str) -> str:
    """Return one sentence: which method is best, by how much, how certain.

    If no method helps, the baseline is named as the best.
    """
    metric = task.metrics[0]
    results = _spelled(task.results[metric.name], spell)
    compared = [result for result in results if result.verdict in _ORDER]
    if not compared:
        return headline(task)
    baseline, digits = baseline_of(results), digits_of(metric, results)
    best = _best(results)
    rest = _clauses([result for result in compared if result is not best])
    if best is not None:
        gain = shift(best, metric, digits)
        text = f"{best.method} is best: {gain} over {baseline}"
        return printable(f"{text}{f'; {rest}' if rest else ''}.")
    if all(result.verdict == "too few seeds" for result in compared):
        return printable(f"{rest[0].upper()}{rest[1:]}.")
    own = next(result for result in results if result.verdict == "baseline")
    unit = f" {metric.unit}" if metric.unit else ""
    value = f"{fixed(own.last.mean, digits)}{unit}, n = {own.last.n}"
    return printable(f"Nothing beats {baseline} ({value}): {rest}.")


def best_of(task: TaskSummary) -> str:
    """Name the best method; the baseline if nothing beats it."""
    results = task.results[task.metrics[0].name]
    best = _best(results)
    if best is not None:
        return printable(best.method)
    judged = [r for r in results if r.verdict in _ORDER[:3]]
    return printable(baseline_of(results)) if judged else "too few seeds"


def _best(results: list[MethodResult]) -> MethodResult | None:
    """Return the method with the largest gain among those that help."""
    helps = [r for r in results if r.verdict == "helps" and r.difference is not None]
    return max(
        helps, key=lambda r: r.difference.mean if r.difference else 0.0, default=None
    )


def shift(result: MethodResult, metric: Metric, digits: int) -> str:
    """Format a difference from the baseline with its interval and n."""
    difference = result.difference
    assert difference is not None, "every compared method has a difference"
    unit = difference_unit(metric)
    unit = f" {unit}" if unit else ""
    mean = fixed(difference.mean, digits, "+")
    sure = f"n = {difference.n}"
    if difference.sd:
        low, high = (fixed(v, digits) for v in (difference.low, difference.high))
        sure = f"{CONFIDENCE} CI {low} to {high}, {sure}"
    return f"{mean}{unit} {metric.name} ({sure})"


def headline(task: TaskSummary, spell: Spell = str) -> str:
    """Summarize in one sentence which methods help and which do not."""
    text = _clauses(_spelled(task.results[task.metrics[0].name], spell))
    if not text:
        return "Nothing to compare: only the baseline was trained."
    # Do not capitalise method names: they are shown as typed.
    first = text.partition(";")[0]
    starts_with_name = first.endswith((" helps", " help", " hurts", " hurt"))
    text = text if starts_with_name else text[0].upper() + text[1:]
    return f"{printable(text)}."


def _spelled(results: list[MethodResult], spell: Spell) -> list[MethodResult]:
    return [replace(result, method=spell(result.method)) for result in results]


def _clauses(results: list[MethodResult]) -> str:
    """Group methods by verdict, wins first."""
    parts = []
    for verdict in _ORDER:
        names = [result.method for result in results if result.verdict == verdict]
        if names:
            parts.append(_clause(verdict, names))
    return "; ".join(parts)


def verdicts(task: TaskSummary, spell: Spell = str) -> list[tuple[str, str]]:
    """Return verdict and sentence of every method but the baseline, wins first."""
    metric = task.metrics[0]
    results = _spelled(task.results[metric.name], spell)
    baseline = baseline_of(results)
    metric = replace(metric, unit=difference_unit(metric))
    compared = [result for result in results if result.verdict in _ORDER]
    compared.sort(key=lambda result: _ORDER.index(result.verdict))
    sentences = [
        (r.verdict, printable(sentence(r, metric=metric, baseline=baseline)))
        for r in compared
    ]
    return sentences + direct_verdict(task, spell)


def direct_verdict(task: TaskSummary, spell: Spell = str) -> list[tuple[str, str]]:
    """Compare Switch EMA with EMA, the paper's central question.

    Also with EMA trained at lr * f, to see if a smaller rate explains the gain.
    """
    with_ema = _against(task, "ema", spell)
    return with_ema + _against(task, f"ema@lr*{SHARE}", spell)


def _against(task: TaskSummary, other: str, spell: Spell) -> list[tuple[str, str]]:
    metric = task.metrics[0]
    metric = replace(metric, unit=difference_unit(metric))
    curves = task.curves[metric.name]
    results = {result.method: result for result in task.results[metric.name]}
    first, second = (
        next((method for method in results if method.partition(":")[0] == name), "")
        for name in ("switch-ema", other)
    )
    if baseline_of(task.results[metric.name]) in (first, second):
        return []  # already among the comparisons with the baseline
    better = metric.higher_is_better
    difference = head_to_head(curves, first, second, higher_is_better=better)
    if difference is None:
        return []
    verdict = verdict_of(difference)
    result = replace(
        results[first], method=spell(first), difference=difference, verdict=verdict
    )
    text = sentence(result, metric=metric, baseline=spell(second), corrected=False)
    if not text.startswith(result.method):  # names are shown as typed
        text = text[0].lower() + text[1:]
    return [(verdict, printable(f"Head to head: {text}"))]


def baseline_sentence(task: TaskSummary, spell: Spell = str) -> str:
    """Give the baseline's value."""
    metric = task.metrics[0]
    results = _spelled(task.results[metric.name], spell)
    own = next(result for result in results if result.verdict == "baseline")
    return printable(sentence(own, metric=metric, baseline=own.method))


def skew_sentence(task: TaskSummary) -> str:
    """Name the methods whose verdict depends on ignoring skew; empty if none."""
    results = task.results[task.metrics[0].name]
    names = [
        r.method
        for r in results
        if r.verdict in ("helps", "hurts") and r.difference and r.difference.is_doubtful
    ]
    if not names:
        return ""
    return printable(
        f"The differences of {listed(names)} from {baseline_of(results)} are skewed; "
        f"with an adjustment for skew, p is not below {LEVEL:g}."
    )


def trivial_sentence(task: TaskSummary) -> str:
    """Give the values of trivial predictors; empty if the task has none."""
    parts = []
    for name, values in task.trivial.items():
        reached = [
            f"{metric.name} {fixed(values[metric.name], _digits(task, metric))}"
            f"{'' if metric.unit in ('', '%') else ' '}{metric.unit}"
            for metric in task.metrics
            if metric.name in values
        ]
        parts.append(f"{name}: {', '.join(reached)}")
    if not parts:
        return ""
    return printable(f"For comparison, without training: {'; '.join(parts)}.")


def _digits(task: TaskSummary, metric: Metric) -> int:
    return digits_of(metric, task.results[metric.name])


def share_sentences(task: TaskSummary, spell: Spell = str) -> list[str]:
    """Give the value of f for each control trained at ``lr*f``."""
    return [
        printable(
            f"{spell(method)} trains at {share:.3g} of the learning rate: f, the share "
            "of its progress that Switch EMA keeps at a switch."
        )
        for method, share in task.shares.items()
    ]


def missing_sentence(task: TaskSummary) -> str:
    """Count the trainings still to run; empty if all are done."""
    if not task.missing:
        return ""
    verb = "has" if task.missing == 1 else "have"
    cells = counted(task.missing, "training")
    return (
        f"{cells} of this task {verb} not been run yet; these numbers are preliminary."
    )


def shared_cost_sentence(task: TaskSummary, spell: Spell = str) -> str:
    """Explain which methods share a training."""
    return " ".join(filter(None, (_sharing(task, spell), _held_out(task, spell))))


def _held_out(task: TaskSummary, spell: Spell) -> str:
    """Explain that data held out for one method is held out for all."""
    methods = [method for cost in task.costs for method in cost.methods]
    users = [spell(method) for method in methods if _uses_held_out(method)]
    if not users:
        return ""
    return (
        "A fifth of the training data was held out from every method and guides "
        f"{printable(listed(users))}; reported values are on the test data."
    )


def _uses_held_out(method: str) -> bool:
    spec = parse_method_spec(method)
    return uses_held_out(spec.name, spec.options)


def _sharing(task: TaskSummary, spell: Spell) -> str:
    groups = [
        [*map(spell, cost.methods)] for cost in task.costs if len(cost.methods) > 1
    ]
    if not groups:
        return "Every method is trained separately."
    names = printable("; ".join(listed(group) for group in groups))
    text = (
        f"Methods that share a training ({names}) only read the weights, so they are "
        "evaluated along the same trajectory."
    )
    if len(groups) == len(task.costs):
        return text
    return f"{text} Every other row is a separate training."


def _clause(verdict: str, methods: list[str]) -> str:
    names, one = listed(methods), len(methods) == 1
    return {
        "helps": f"{names} {'helps' if one else 'help'}",
        "hurts": f"{names} {'hurts' if one else 'hurt'}",
        "no difference found": f"no difference was found for {names}",
        "too few seeds": f"too few seeds to judge {names}",
    }[verdict]


def sentence(
    result: MethodResult,
    *,
    metric: Metric,
    baseline: str = "plain",
    corrected: bool = True,
) -> str:
    """State the verdict with the numbers behind it.

    ``corrected``: whether p is Holm-corrected; that of :func:`head_to_head` is not.
    """
    method, d, last = result.method, result.difference, result.last
    unit = f" {metric.unit}" if metric.unit else ""
    if result.verdict == "baseline":
        if not last.n:
            return f"{method} is the baseline but has no finite {metric.name}."
        value = f"{last.mean:.4g}{unit} {metric.name}"
        spread = "" if last.sd is None else f"sd {last.sd:.2g}, "
        return f"{method} is the baseline: {value} ({spread}n = {last.n})."
    if d is None:
        return f"Too few seeds finished to compare {method} with {baseline}."
    # Enough decimals for two significant digits of the interval's half width.
    width = (d.high - d.low) / 2 if d.sd else abs(d.mean) or 1.0
    form = f".{max(0, 1 - floor(log10(width)))}f"
    claim, seen = _evidence(d, metric, unit, baseline, form)
    if result.verdict == "too few seeds":
        return (
            f"Too few seeds to judge {method}: {claim} with n = {d.n}; a verdict needs "
            f"at least {FEWEST}."
        )
    evidence = f"{claim} ({seen}, {_chance(d, corrected)})"
    if result.verdict != "no difference found":
        return f"{method} {result.verdict}: {evidence}{_doubt(d)}."
    text = f"No difference found between {method} and {baseline}: {evidence}"
    if not isnan(d.detectable):
        text += f"; n = {d.n} has {POWER:.0%} power only for differences of "
        text += f"{d.detectable:{form}}{unit} or more"
    return f"{text}."


def _evidence(
    d: Difference, metric: Metric, unit: str, base: str, form: str
) -> tuple[str, str]:
    """Return the difference and its interval, in words."""
    low, high, word = d.low, d.high, "over" if d.mean >= 0 else "vs"
    claim = f"{d.mean:+{form}}{unit} {metric.name} {word} {base}"
    direction = ""
    if not metric.higher_is_better:
        word = "lower" if d.mean >= 0 else "higher"
        low, high = (low, high) if d.mean >= 0 else (-high, -low)
        claim = f"{metric.name} {abs(d.mean):{form}}{unit} {word} than {base}"
        direction = "lower is better; "
    if d.sd == 0:
        return claim, f"{direction}the same or nearly the same in all n = {d.n} seeds"
    interval = f"{CONFIDENCE} CI {low:{form}} to {high:{form}}"
    return claim, f"{direction}{interval}, n = {d.n}"


def _chance(d: Difference, corrected: bool) -> str:
    p = "p < 0.0001" if d.p_holm < 1e-4 else f"p = {d.p_holm:.2g}"
    if d.sd == 0 or d.allows_for_skew:
        test = "sign test" if d.sd == 0 else "t-test adjusted for skew"
        return f"{p}, {test}, {'after Holm' if corrected else 'not corrected'}"
    return f"{p} after Holm" if corrected else f"{p}, not corrected"


def _doubt(d: Difference) -> str:
    if not d.is_doubtful:
        return ""
    return f"; with an adjustment for skew, p = {d.p_if_skewed:.2g}"
