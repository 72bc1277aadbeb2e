"""The verdict in words, the same in every report.

Functions take ``spell``, which turns the name of a method as it is typed into the one
that is shown: terminals show what can be typed, pages show display names.
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

# What matters most to the reader first; the baseline needs no verdict.
_ORDER = ("helps", "hurts", "no difference found", "too few seeds")

RULE = (
    "How the verdicts were reached: each method is compared with the baseline seed by "
    "seed, at the last epoch, by a two-sided paired t-test; p-values are corrected "
    f"over the methods (Holm), and below {LEVEL:g} counts as a difference, where at "
    f"least {FEWEST} seeds are paired. Where the differences spread by less than the "
    "metric can tell apart, such as one test sample, an exact sign test takes the "
    f"place of the t-test; where {ALLOWED_FROM} or more show a long tail on the other "
    "side of their mean, it is adjusted for skew (Hall's transformation). "
    f"Intervals are {CONFIDENCE} confidence intervals of the mean "
    "difference, corrected as the p-values are: one without zero is a difference. The "
    "comparison of Switch EMA with EMA stands by itself and is not corrected. "
    "Speed-up: the epochs in which the baseline reached its own last value by the "
    "epochs the method needed for it, medians over the seeds that reached it (7/8: in "
    "7 of 8 seeds)."
)


def best_sentence(task: TaskSummary, spell: Spell = str) -> str:
    """Answer the question in one sentence: what is best, by how much, how sure.

    Only a method that was found to help can be the best; else the baseline is.
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
    """Name the best method in few words, the baseline where nothing beats it."""
    results = task.results[task.metrics[0].name]
    best = _best(results)
    if best is not None:
        return printable(best.method)
    judged = [r for r in results if r.verdict in _ORDER[:3]]
    return printable(baseline_of(results)) if judged else "too few seeds"


def _best(results: list[MethodResult]) -> MethodResult | None:
    """Find the largest gain of those that were judged to be one."""
    helps = [r for r in results if r.verdict == "helps" and r.difference is not None]
    return max(
        helps, key=lambda r: r.difference.mean if r.difference else 0.0, default=None
    )


def shift(result: MethodResult, metric: Metric, digits: int) -> str:
    """Spell a difference to the baseline with its interval and number of pairs."""
    difference = result.difference
    assert difference is not None, "only what was compared has a difference"
    unit = difference_unit(metric)
    unit = f" {unit}" if unit else ""
    mean = fixed(difference.mean, digits, "+")
    sure = f"n = {difference.n}"
    if difference.sd:
        low, high = (fixed(v, digits) for v in (difference.low, difference.high))
        sure = f"{CONFIDENCE} CI {low} to {high}, {sure}"
    return f"{mean}{unit} {metric.name} ({sure})"


def headline(task: TaskSummary, spell: Spell = str) -> str:
    """Say in one sentence what helps and what does not."""
    text = _clauses(_spelled(task.results[task.metrics[0].name], spell))
    if not text:
        return "There is nothing to compare: only the baseline was trained."
    # Method names keep the case in which they were typed.
    first = text.partition(";")[0]
    starts_with_name = first.endswith((" helps", " help", " hurts", " hurt"))
    text = text if starts_with_name else text[0].upper() + text[1:]
    return f"{printable(text)}."


def _spelled(results: list[MethodResult], spell: Spell) -> list[MethodResult]:
    return [replace(result, method=spell(result.method)) for result in results]


def _clauses(results: list[MethodResult]) -> str:
    """Say of all methods with the same verdict what it is, wins first."""
    parts = []
    for verdict in _ORDER:
        names = [result.method for result in results if result.verdict == verdict]
        if names:
            parts.append(_clause(verdict, names))
    return "; ".join(parts)


def verdicts(task: TaskSummary, spell: Spell = str) -> list[tuple[str, str]]:
    """List verdict and sentence of every method but the baseline, wins first."""
    metric = task.metrics[0]
    results = _spelled(task.results[metric.name], spell)
    baseline = baseline_of(results)
    metric = replace(metric, unit=difference_unit(metric))
    compared = [result for result in results if result.verdict in _ORDER]
    compared.sort(key=lambda result: _ORDER.index(result.verdict))
    told = [
        (r.verdict, printable(sentence(r, metric=metric, baseline=baseline)))
        for r in compared
    ]
    return told + direct_verdict(task, spell)


def direct_verdict(task: TaskSummary, spell: Spell = str) -> list[tuple[str, str]]:
    """Compare Switch EMA with EMA where both took part: the paper's own question.

    And with EMA at the learning rate times f: whether it is more than a smaller rate.
    """
    told = _against(task, "ema", spell)
    return told + _against(task, f"ema@lr*{SHARE}", spell)


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
        return []  # it has been compared with the other already, and corrected
    better = metric.higher_is_better
    difference = head_to_head(curves, first, second, higher_is_better=better)
    if difference is None:
        return []
    verdict = verdict_of(difference)
    result = replace(
        results[first], method=spell(first), difference=difference, verdict=verdict
    )
    text = sentence(result, metric=metric, baseline=spell(second), corrected=False)
    if not text.startswith(result.method):  # names keep their case
        text = text[0].lower() + text[1:]
    return [(verdict, printable(f"Head to head: {text}"))]


def baseline_sentence(task: TaskSummary, spell: Spell = str) -> str:
    """Say what the baseline reached."""
    metric = task.metrics[0]
    results = _spelled(task.results[metric.name], spell)
    own = next(result for result in results if result.verdict == "baseline")
    return printable(sentence(own, metric=metric, baseline=own.method))


def skew_sentence(task: TaskSummary) -> str:
    """Name the methods whose verdicts are less sure than p says; empty if none are."""
    results = task.results[task.metrics[0].name]
    names = [
        r.method
        for r in results
        if r.verdict in ("helps", "hurts") and r.difference and r.difference.is_doubtful
    ]
    if not names:
        return ""
    return printable(
        f"The differences of {listed(names)} to {baseline_of(results)} are skewed; "
        f"adjusted for that, p would not be below {LEVEL:g}."
    )


def trivial_sentence(task: TaskSummary) -> str:
    """Say what trivial predictors reach; empty if the task names none."""
    parts = []
    for name, values in task.trivial.items():
        told = [
            f"{metric.name} {fixed(values[metric.name], _digits(task, metric))}"
            f"{'' if metric.unit in ('', '%') else ' '}{metric.unit}"
            for metric in task.metrics
            if metric.name in values
        ]
        parts.append(f"{name}: {', '.join(told)}")
    if not parts:
        return ""
    return printable(f"For comparison, without training: {'; '.join(parts)}.")


def _digits(task: TaskSummary, metric: Metric) -> int:
    return digits_of(metric, task.results[metric.name])


def share_sentences(task: TaskSummary, spell: Spell = str) -> list[str]:
    """Say at which share of the learning rate controls with ``lr*f`` were trained."""
    return [
        printable(
            f"{spell(method)} trains at f = {share:.3g} of the learning rate, the "
            "share of its progress that Switch EMA keeps at a switch."
        )
        for method, share in task.shares.items()
    ]


def missing_sentence(task: TaskSummary) -> str:
    """Say what has not been trained; empty if all was."""
    if not task.missing:
        return ""
    verb = "has" if task.missing == 1 else "have"
    cells = counted(task.missing, "training")
    return f"{cells} of this task {verb} not been run yet: the numbers are preliminary."


def shared_cost_sentence(task: TaskSummary, spell: Spell = str) -> str:
    """Explain why several methods can stand behind one training time."""
    return " ".join(filter(None, (_sharing(task, spell), _held_out(task, spell))))


def _held_out(task: TaskSummary, spell: Spell) -> str:
    """Say what a method that uses held-out data changes for all methods."""
    methods = [method for cost in task.costs for method in cost.methods]
    users = [spell(method) for method in methods if _uses_held_out(method)]
    if not users:
        return ""
    return (
        "A fifth of the training data was held out from every method; it decides about "
        f"{printable(listed(users))}, and the values are those of the test data."
    )


def _uses_held_out(method: str) -> bool:
    spec = parse_method_spec(method)
    return uses_held_out(spec.name, spec.options)


def _sharing(task: TaskSummary, spell: Spell) -> str:
    groups = [
        [*map(spell, cost.methods)] for cost in task.costs if len(cost.methods) > 1
    ]
    if not groups:
        return "Every method needs a training of its own."
    names = printable("; ".join(listed(group) for group in groups))
    text = (
        f"One training serves all of {names}: they only read the weights, so they "
        "are evaluated along the same trajectory."
    )
    if len(groups) == len(task.costs):
        return text
    return f"{text} Every other row is a training of its own."


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
    """Say the verdict in words, with the numbers it rests on.

    ``corrected`` tells whether the p-value is one of several after Holm, or stands by
    itself as that of :func:`head_to_head`.
    """
    method, d, last = result.method, result.difference, result.last
    unit = f" {metric.unit}" if metric.unit else ""
    if result.verdict == "baseline":
        if not last.n:
            return f"{method} is the baseline, and has no finite {metric.name}."
        value = f"{last.mean:.4g}{unit} {metric.name}"
        spread = "" if last.sd is None else f"sd {last.sd:.2g}, "
        return f"{method} is the baseline: {value} ({spread}n = {last.n})."
    if d is None:
        return f"Too few seeds finished to compare {method} with {baseline}."
    # As many decimals as show two figures of the interval's half width.
    width = (d.high - d.low) / 2 if d.sd else abs(d.mean) or 1.0
    form = f".{max(0, 1 - floor(log10(width)))}f"
    claim, seen = _evidence(d, metric, unit, baseline, form)
    if result.verdict == "too few seeds":
        return (
            f"Too few seeds to judge {method}: {claim} in n = {d.n}; a verdict needs "
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
    """State the difference, and the interval of that number."""
    low, high, word = d.low, d.high, "over" if d.mean >= 0 else "against"
    claim = f"{d.mean:+{form}}{unit} {metric.name} {word} {base}"
    direction = ""
    if not metric.higher_is_better:
        word = "better" if d.mean >= 0 else "worse"
        low, high = (low, high) if d.mean >= 0 else (-high, -low)
        size = f"{abs(d.mean):{form}}{unit}"
        claim = f"{metric.name} {word} by {size} than {base}"
        direction = "lower is better; "
    if d.sd == 0:
        return claim, f"{direction}the same in all n = {d.n} seeds, or nearly so"
    interval = f"{CONFIDENCE} CI {low:{form}} to {high:{form}}"
    return claim, f"{direction}{interval}, n = {d.n}"


def _chance(d: Difference, corrected: bool) -> str:
    p = "p < 0.0001" if d.p_holm < 1e-4 else f"p = {d.p_holm:.2g}"
    if d.sd == 0 or d.allows_for_skew:
        test = "sign test" if d.sd == 0 else "t-test adjusted for skew"
        return f"{p} by {test}{' and Holm' if corrected else ', not corrected'}"
    return f"{p} after Holm" if corrected else f"{p}, not corrected"


def _doubt(d: Difference) -> str:
    if not d.is_doubtful:
        return ""
    return f"; adjusted for the skew of the differences p would be {d.p_if_skewed:.2g}"
