"""Verdicts as sentences, worded the same in every report.

``spell`` maps a method's typed name to the displayed one: terminals show what can be
typed, pages show display names.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import floor, isnan, log10

from switch_ema.bench.recipe import Metric
from switch_ema.bench.report.numbers import (
    NONE,
    difference_unit,
    digits_of,
    fixed,
    significant,
    size_of,
)
from switch_ema.bench.report.rows import baseline_of, detects, interval_of
from switch_ema.bench.spec import EPOCHS, SHARE
from switch_ema.bench.stats.paired import (
    CONFIDENCE,
    FEWEST,
    LEVEL,
    POWER,
    Difference,
    MethodResult,
    finished_curves,
    leaders,
)
from switch_ema.bench.stats.skewed import ALLOWED_FROM
from switch_ema.bench.stats.summary import TaskSummary
from switch_ema.bench.stats.verdicts import (
    DECIDED,
    OF_BASELINE,
    POINTS,
    VERDICTS,
    Verdict,
    clause,
    unbeaten,
)
from switch_ema.bench.text import counted, listed, printable

Spell = Callable[[str], str]

RULE = (
    "How verdicts are reached: each method is compared with the baseline at the last "
    "epoch by a two-sided paired t-test over seeds; p-values are Holm-corrected over "
    f"the methods, and p < {LEVEL:g} with at least {FEWEST} pairs of seeds counts as a "
    "difference (helps or hurts). Otherwise there is no difference larger than X if "
    "the interval lies between -X and +X, and the verdict is undecided if it does not, "
    "or with fewer pairs; undecided verdicts come with the difference that this many "
    f"seeds detect with {POWER:.0%} power. X, the smallest effect of interest, is "
    "--smallest-effect, else what the task declares for its metric, else "
    f"{POINTS:g} points for metrics in %, else {OF_BASELINE:.0%} of the baseline's "
    "value. If the differences vary by less than the metric can resolve, such as "
    "one test sample, an exact sign test replaces the t-test; if methods of one seed "
    "did not start from the same weights and batch, Welch's unpaired test does; if "
    "there are at least "
    f"{ALLOWED_FROM} pairs and a long tail opposite in sign to the mean, the test is "
    "adjusted for skew (Hall's transformation). "
    f"Intervals are {CONFIDENCE} confidence intervals of the mean difference, "
    "corrected like the p-values: an interval that excludes zero is a difference. "
    "A method is called best if paired tests, Holm-corrected, find it better than "
    "every other method that helps. The "
    "head-to-head of Switch EMA and EMA is a separate test and is not corrected. "
    "Speed-up: epochs the baseline needed to reach its own final value, divided by "
    "the epochs the method needed to reach it; medians over the seeds that reached it "
    "(7/8: 7 of 8 seeds). If seeds are added until the verdicts are settled, p-values "
    "and intervals are those of a mixture test that is valid at every look."
)


def rule_for(tasks: Iterable[TaskSummary]) -> str:
    """Return the rule, and how many verdicts to expect by chance."""
    tests = sum(1 + len(direct_pairs(task)) for task in tasks)
    if tests < 2:
        return RULE
    return (
        f"{RULE} Tasks and head-to-heads are not corrected for one another: if no "
        f"method made any difference, {tests * LEVEL:.2g} of these {tests} tests would "
        "be expected to find one by chance."
    )


def best_sentence(task: TaskSummary, spell: Spell = str) -> str:
    """Say in one or two sentences which method is best, by how much, how certain.

    A baseline that has not learned comes first. If no method helps, the baseline is
    named as the best, unless verdicts are undecided.
    """
    metric = task.metrics[0]
    results = task.results[metric.name]
    compared = [result for result in results if result.verdict in VERDICTS]
    if not compared:
        return headline(task, spell)
    leaders = leaders_of(task)
    rest = _clauses([r for r in compared if r not in leaders], metric, spell)
    if leaders:
        text = _lead(leaders, task, spell)
    elif any(result.verdict == "undecided" for result in compared):
        text = _open_question(compared, metric, digits_of(metric, results), spell)
        rest = _clauses([r for r in compared if r.verdict in DECIDED], metric, spell)
    elif all(result.idle for result in compared):
        return headline(task, spell)
    else:
        own = next(result for result in results if result.verdict == "baseline")
        unit = f" {metric.unit}" if metric.unit else ""
        digits = digits_of(metric, results)
        value = f"{fixed(own.last.mean, digits)}{unit}, n = {own.last.n}"
        text, rest = f"Nothing beats {spell(own.method)} ({value}): {rest}", ""
    return _after_trouble(task, spell, f"{text}{f'; {rest}' if rest else ''}.")


def best_of(task: TaskSummary) -> str:
    """Say in a few words which methods help, for lists of runs."""
    results = task.results[task.metrics[0].name]
    leaders = [result.method for result in leaders_of(task)]
    compared = [result for result in results if result.verdict in VERDICTS]
    if leaders:
        helping = [r.method for r in results if r.verdict == "helps"]
        is_best = len(leaders) == 1 < len(helping)
        verb = "is best" if is_best else "helps" if len(leaders) == 1 else "help"
        text = f"{listed(leaders)} {verb}"
    elif any(result.verdict == "undecided" for result in compared):
        text = "undecided"
    elif compared and all(result.idle for result in compared):
        text = "did not act"
    else:
        text = f"nothing beats {baseline_of(results)}" if compared else "baseline only"
    return printable("; ".join([*(word for word, _ in troubles_of(task)), text]))


def leaders_of(task: TaskSummary) -> list[MethodResult]:
    """Return the best of the methods that help and those it cannot be told from."""
    metric = task.metrics[0]
    helping = {
        result.method: result
        for result in task.results[metric.name]
        if result.verdict == "helps"
    }
    names = leaders(
        task.curves[metric.name],
        {name: r.difference.mean for name, r in helping.items() if r.difference},
        higher_is_better=metric.higher_is_better,
        sequential=task.sequential,
    )
    return [helping[name] for name in names]


def troubles_of(task: TaskSummary, spell: Spell = str) -> list[tuple[str, str]]:
    """Say that the baseline diverged or is no better than a trivial predictor.

    Returns:
        A few words and a sentence each.
    """
    metric = task.metrics[0]
    results = task.results[metric.name]
    own = next(result for result in results if result.verdict == "baseline")
    name = spell(own.method)
    # Other methods may train for more epochs, so only its own curves count.
    trained = task.curves[metric.name].get(own.method, {})
    finished = finished_curves({own.method: trained}, sign=1)[own.method]
    lost = len(trained) - len(finished)
    found = []
    if lost:
        seeds = f"{lost} of {counted(len(trained), 'seed')}"
        sentence = f"{name} diverged or did not finish in {seeds}"
        if not own.last.n:
            sentence += ", so there is nothing to compare with"
        found.append((f"{own.method} diverged", f"{sentence}."))
    predictor = unbeaten(task.trivial, metric, own.last.mean) if own.last.n else None
    if predictor is not None:
        unit = f" {metric.unit}" if metric.unit else ""
        digits = digits_of(metric, results)
        value, reached = (
            f"{fixed(v, digits)}{unit}"
            for v in (own.last.mean, task.trivial[predictor][metric.name])
        )
        sentence = f"{value} is no better than {predictor} ({reached})"
        found.append(
            (f"{own.method} did not learn", f"{name} did not learn: {sentence}.")
        )
    return found


def _after_trouble(task: TaskSummary, spell: Spell, text: str) -> str:
    """Put what is wrong with the baseline first; without one, nothing follows."""
    parts = [sentence for _, sentence in troubles_of(task, spell)]
    own = task.results[task.metrics[0].name]
    if any(r.last.n for r in own if r.verdict == "baseline") or not parts:
        parts.append(text)
    return printable(" ".join(parts))


def _lead(leaders: list[MethodResult], task: TaskSummary, spell: Spell) -> str:
    """Name the best method, or those that cannot be told apart, with their gains."""
    metric = task.metrics[0]
    results = task.results[metric.name]
    digits, baseline = digits_of(metric, results), spell(baseline_of(results))
    if len(leaders) > 1:
        names = listed(spell(result.method) for result in leaders)
        gains = listed(_brief(result, digits) for result in leaders)
        others = [r for r in results if r.verdict == "helps" and r not in leaders]
        unit = difference_unit(metric)
        unit = f" {unit}" if unit else ""
        return (
            f"{names} help{' most' if others else ''}; they cannot be told apart: "
            + (
                f"{gains}{unit} {metric.name} over {baseline}"
                if metric.higher_is_better
                else f"{metric.name} lower than {baseline} by {gains}{unit}"
            )
        )
    (best,) = leaders
    is_best = any(r.verdict == "helps" for r in results if r is not best)
    verb = "is best" if is_best else "helps"
    gain = shift(best, metric, digits, baseline)
    return f"{spell(best.method)} {verb}: {gain}"


def _brief(result: MethodResult, digits: int) -> str:
    """Format a difference and its interval, as short as possible."""
    difference = result.difference
    if difference is None:
        return NONE
    mean = fixed(difference.mean, digits, "+")
    return f"{mean} {interval_of(difference, digits)}" if difference.sd else mean


def _open_question(
    compared: list[MethodResult], metric: Metric, digits: int, spell: Spell
) -> str:
    """Say that nothing is decided yet, and what could have been detected."""
    undecided = [result for result in compared if result.verdict == "undecided"]
    found = [result.difference for result in undecided if result.difference]
    sizes = sorted(d.detectable for d in found if d.n >= FEWEST and d.detectable > 0)
    n = sorted({d.n for d in found})
    with_n = (
        f"n = {n[0]}" if len(n) == 1 else f"n = {n[0]} to {n[-1]}" if n else "n = 0"
    )
    briefs = ", ".join(f"{spell(r.method)} {_brief(r, digits)}" for r in undecided)
    if sizes:
        least, most = (size_of(size, metric) for size in (sizes[0], sizes[-1]))
        needed = most if least == most else f"{significant(sizes[0])} to {most}"
        why = f"with {with_n} only differences of {needed} or more can be detected"
    elif n and n[-1] >= FEWEST:
        why = f"with {with_n} the seeds do not decide"
    else:
        why = f"with {with_n} there are too few seeds, and a verdict needs {FEWEST}"
    sign = "" if metric.higher_is_better else " (positive is lower, so better)"
    return f"Undecided: {why}; {briefs}{sign}"


def shift(result: MethodResult, metric: Metric, digits: int, baseline: str) -> str:
    """Format a difference from the baseline with its interval and n."""
    d = result.difference
    assert d is not None, "every compared method has a difference"
    unit = difference_unit(metric)
    unit = f" {unit}" if unit else ""
    low, high, sure = d.low, d.high, f"n = {d.n}"
    if not metric.higher_is_better and d.mean < 0:
        low, high = -high, -low
    if d.sd:
        interval = f"{fixed(low, digits)} to {fixed(high, digits)}"
        sure = f"{CONFIDENCE} CI {interval}, {sure}"
    if metric.higher_is_better:
        mean = fixed(d.mean, digits, "+")
        return f"{mean}{unit} {metric.name} ({sure}) over {baseline}"
    direction = "lower" if d.mean >= 0 else "higher"
    size = fixed(abs(d.mean), digits)
    return f"{metric.name} {size}{unit} {direction} than {baseline} ({sure})"


def headline(task: TaskSummary, spell: Spell = str) -> str:
    """Summarize in one sentence which methods help and which do not."""
    metric = task.metrics[0]
    results = task.results[metric.name]
    text = _clauses(results, metric, spell) or (
        "nothing to compare: only the baseline was trained"
    )
    # Do not capitalise method names: they are shown as typed.
    if not text.startswith(tuple(spell(result.method) for result in results)):
        text = text[0].upper() + text[1:]
    return _after_trouble(task, spell, f"{text}.")


def _spelled(results: list[MethodResult], spell: Spell) -> list[MethodResult]:
    return [replace(result, method=spell(result.method)) for result in results]


def _clauses(results: list[MethodResult], metric: Metric, spell: Spell) -> str:
    """Group methods by verdict, wins first."""
    parts = []
    for verdict in VERDICTS:
        own = [result for result in results if result.verdict == verdict]
        names = [
            f"{spell(result.method)}{f' ({result.idle})' if result.idle else ''}"
            for result in own
        ]
        if names:
            largest = (
                max(r.difference.smallest_effect for r in own if r.difference)
                if verdict == "no difference"
                else 0.0
            )
            smallest = size_of(largest, metric, up=True)
            parts.append(clause(verdict, names, listed(names), smallest))
    return "; ".join(parts)


def verdicts(task: TaskSummary, spell: Spell = str) -> list[tuple[Verdict, str]]:
    """Return verdict and sentence of every method but the baseline, wins first."""
    metric = task.metrics[0]
    results = _spelled(task.results[metric.name], spell)
    baseline = baseline_of(results)
    metric = replace(metric, unit=difference_unit(metric))
    compared = [result for result in results if result.verdict in VERDICTS]
    compared.sort(key=lambda result: VERDICTS.index(result.verdict))
    sentences: list[tuple[Verdict, str]] = [
        (r.verdict, printable(sentence(r, metric=metric, baseline=baseline)))
        for r in compared
    ]
    return sentences + _direct_verdicts(task, spell)


def _direct_verdicts(
    task: TaskSummary, spell: Spell = str
) -> list[tuple[Verdict, str]]:
    """Compare Switch EMA with EMA, in sentences."""
    metric = replace(task.metrics[0], unit=difference_unit(task.metrics[0]))
    results = {result.method: result for result in task.results[metric.name]}
    found: list[tuple[Verdict, str]] = []
    for first, second, difference in direct_pairs(task):
        verdict = difference.verdict
        result = replace(
            results[first], method=spell(first), difference=difference, verdict=verdict
        )
        text = sentence(result, metric=metric, baseline=spell(second), corrected=False)
        if not text.startswith(result.method):  # names are shown as typed
            text = text[0].lower() + text[1:]
        found.append((verdict, printable(f"Head to head: {text}")))
    return found


SMALLER_RATE = f"ema@lr*{SHARE}"
_CONTROLS = (SMALLER_RATE, f"ema@{EPOCHS}*{SHARE}", f"lookahead:alpha={SHARE}")
"""EMA at a smaller learning rate or for fewer epochs, and Lookahead once per epoch."""


def direct_pairs(task: TaskSummary) -> list[tuple[str, str, Difference]]:
    """Compare Switch EMA with EMA, the paper's central question.

    Also with controls that learn as much less by other means, to see if this explains
    the gain. Pairs with the baseline are among the other comparisons already.
    """
    pairs = map(task.switch_ema_against, ("ema", *_CONTROLS))
    return [pair for pair in pairs if pair is not None]


def baseline_sentence(task: TaskSummary, spell: Spell = str) -> str:
    """Give the baseline's value."""
    metric = task.metrics[0]
    results = _spelled(task.results[metric.name], spell)
    own = next(result for result in results if result.verdict == "baseline")
    return printable(sentence(own, metric=metric, baseline=own.method))


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
    if result.idle:
        return f"{method} did not act in this run: {result.idle}."
    if d is None:
        return (
            f"Undecided whether {method} helps: too few seeds finished to compare it "
            f"with {baseline}."
        )
    # Enough decimals for two significant digits of the interval's half width.
    width = (d.high - d.low) / 2 if d.sd else abs(d.mean) or 1.0
    digits = max(0, 1 - floor(log10(width)))
    claim, seen = _evidence(d, metric, unit, baseline, digits)
    if d.n < FEWEST:
        return (
            f"Undecided whether {method} helps: {claim} with n = {d.n}; a verdict "
            f"needs at least {FEWEST}."
        )
    evidence = f"{claim} ({seen}, {_chance(d, corrected)})"
    if result.verdict == "no difference":
        smallest = size_of(d.smallest_effect, metric, up=True)
        between = f"{method} and {baseline}"
        return f"No difference larger than {smallest} between {between}: {evidence}."
    if result.verdict != "undecided":
        return f"{method} {result.verdict}: {evidence}{_doubt(d)}."
    text = f"Undecided whether {method} helps: {evidence}"
    if not isnan(d.detectable):
        text += f"; {detects(d, metric)} (with {POWER:.0%} power)"
    return f"{text}."


def _evidence(
    d: Difference, metric: Metric, unit: str, base: str, digits: int
) -> tuple[str, str]:
    """Return the difference and its interval, in words."""
    low, high, word = d.low, d.high, "over" if d.mean >= 0 else "vs"
    claim = f"{fixed(d.mean, digits, '+')}{unit} {metric.name} {word} {base}"
    direction = ""
    if not metric.higher_is_better:
        word = "lower" if d.mean >= 0 else "higher"
        low, high = (low, high) if d.mean >= 0 else (-high, -low)
        claim = f"{metric.name} {fixed(abs(d.mean), digits)}{unit} {word} than {base}"
        direction = "lower is better; "
    if d.sd == 0:
        return claim, f"{direction}the same or nearly the same in all n = {d.n} seeds"
    interval = f"{CONFIDENCE} CI {fixed(low, digits)} to {fixed(high, digits)}"
    unpaired = ", unpaired" if d.freedom else ""
    return claim, f"{direction}{interval}, n = {d.n}{unpaired}"


def _chance(d: Difference, corrected: bool) -> str:
    p = "p < 0.0001" if d.p_holm < 1e-4 else f"p = {d.p_holm:.2g}"
    if d.freedom:
        return f"{p}, Welch's test, {'after Holm' if corrected else 'not corrected'}"
    if d.sd == 0 or d.allows_for_skew:
        test = "sign test" if d.sd == 0 else "t-test adjusted for skew"
        return f"{p}, {test}, {'after Holm' if corrected else 'not corrected'}"
    return f"{p} after Holm" if corrected else f"{p}, not corrected"


def _doubt(d: Difference) -> str:
    if not d.is_doubtful:
        return ""
    return f"; with an adjustment for skew, p = {d.p_if_skewed:.2g}"
