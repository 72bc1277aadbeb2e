"""What a reviewer asks first, in one line each.

Does the run over-train? Is the gain more than stopping in time? Is Switch EMA better
than EMA? What to do next? The verdicts themselves are in ``verdict_text.py``.
"""

from dataclasses import replace
from math import inf, isfinite

from switch_ema.bench.method_names import BEST, DESCRIPTIONS
from switch_ema.bench.recipe import Metric
from switch_ema.bench.report.numbers import (
    digits_of,
    digits_within,
    fixed,
    size_of,
)
from switch_ema.bench.report.rows import baseline_of
from switch_ema.bench.report.verdict_text import (
    Spell,
    direct_pairs,
    leaders_of,
    troubles_of,
)
from switch_ema.bench.spec import is_script, parse_method_spec
from switch_ema.bench.stats.course import (
    FLAT,
    IMPROVING,
    PEAKED,
    Course,
    at_best_epochs,
    course,
)
from switch_ema.bench.stats.paired import (
    Difference,
    MethodResult,
    compare,
    verdict_of,
)
from switch_ema.bench.stats.sensitivity import MOST_SEEDS, seeds_to_decide
from switch_ema.bench.stats.summary import TaskSummary
from switch_ema.bench.stats.verdicts import VERDICTS, Verdict
from switch_ema.bench.text import counted, listed, printable


def first_screen(task: TaskSummary, spell: Spell = str) -> list[tuple[Verdict, str]]:
    """Answer a reviewer's questions, each with the verdict that colours its line."""
    smallest = smallest_effect(task)
    if smallest is None:
        return []
    own = course_of(task, baseline_of(task.results[task.metrics[0].name]), smallest)
    lines: list[tuple[Verdict, str]] = []
    if own is not None:
        lines.append(("baseline", _course_sentence(task, own, smallest, spell)))
    lines += _best_epoch_line(task, own, smallest, spell)
    lines += _direct_lines(task, own, spell)
    lines.append(("baseline", f"Next: {_next(task, own, spell)}."))
    return [(verdict, printable(text)) for verdict, text in lines]


def smallest_effect(task: TaskSummary) -> float | None:
    """Return the smallest effect of interest; None if nothing could be compared."""
    results = task.results[task.metrics[0].name]
    return next((r.difference.smallest_effect for r in results if r.difference), None)


def course_of(task: TaskSummary, method: str, smallest: float) -> Course | None:
    """Return the course of a method in the metric that decides."""
    metric = task.metrics[0]
    return course(
        task.curves[metric.name],
        method,
        higher_is_better=metric.higher_is_better,
        smallest=smallest,
        sequential=task.sequential,
    )


def _course_sentence(
    task: TaskSummary, own: Course, smallest: float, spell: Spell
) -> str:
    metric, name = task.metrics[0], spell(own.method)
    digits = digits_of(metric, task.results[metric.name])
    if own.state == PEAKED:
        size = _size(own.decline, metric)
        best = f"near epoch {own.epoch} at {fixed(own.best, digits)}"
        if metric.higher_is_better:
            text = f"{name} peaked {best} and lost {size} by the last epoch"
        else:
            text = f"{name} was best {best} and rose by {size} by the last epoch"
        return (
            f"{text}, but was recovering: this run over-trained for a while."
            if own.is_recovering
            else f"{text}: this run over-trains."
        )
    epochs = f"the last {counted(own.window, 'epoch')}"
    if own.window == 1:
        epochs = "the last epoch"
    if own.state == IMPROVING:
        size = _size(own.recent, metric)
        what = "gained" if metric.higher_is_better else "fell by"
        text = f"{name} was still improving: it {what} {size} in {epochs}"
        return f"{text}{': this run under-fits' if _is_constant(task) else ''}."
    if own.state == FLAT:
        least = size_of(smallest, metric)
        return f"{name} had flattened: it changed by less than {least} in {epochs}."
    return (
        f"n = {own.decline.n} is too few to tell whether {name} over-trained or was "
        "still improving."
    )


def _is_constant(task: TaskSummary) -> bool:
    """Whether the learning rate is known not to fall: then rising is under-fitting."""
    return task.trained.get("Learning rate", "").startswith("constant")


def _best_epoch_line(
    task: TaskSummary, own: Course | None, smallest: float, spell: Spell
) -> list[tuple[Verdict, str]]:
    """Compare the most interesting method and the baseline at their best epochs.

    Without over-training, the best epochs are as good as the last ones.
    """
    focus = _focus(task)
    if focus is None or own is None:
        return []
    other = course_of(task, focus.method, smallest)
    if {own.state, other.state if other else own.state} <= {FLAT, IMPROVING}:
        return []
    metric = task.metrics[0]
    better, found = metric.higher_is_better, []
    for each in (False, True):
        curves = at_best_epochs(
            task.curves[metric.name], higher_is_better=better, seed_by_seed=each
        )
        results = compare(
            curves,
            higher_is_better=better,
            baseline=own.method,
            smallest_effect=smallest,
            idle={r.method: r.idle for r in task.results[metric.name] if r.idle},
            sequential=task.sequential,
        )
        found.append(next(r for r in results if r.method == focus.method))
    same, each_own = (result.difference for result in found)
    if same is None or each_own is None or focus.difference is None:
        return []
    if _lead(same, metric) == _lead(focus.difference, metric):
        return []  # the best epochs are the last ones
    name, baseline = spell(focus.method), spell(own.method)
    text = (
        f"If both stop at their best epoch, {name} {_lead(same, metric, baseline)}; "
        f"if each seed stops at its own best epoch, {_also(each_own, same, metric)}."
    )
    return [(found[0].verdict, text)]


def _focus(task: TaskSummary) -> MethodResult | None:
    """Return the best method that helps, else Switch EMA, else EMA, else the first."""
    leaders = leaders_of(task)
    if leaders:
        return leaders[0]
    results = task.results[task.metrics[0].name]
    compared = [r for r in results if r.verdict in VERDICTS and r.difference]
    for name in ("switch-ema", "ema"):
        for result in compared:
            if parse_method_spec(result.method).name == name:
                return result
    return compared[0] if compared else None


def _direct_lines(
    task: TaskSummary, own: Course | None, spell: Spell
) -> list[tuple[Verdict, str]]:
    """Compare Switch EMA with EMA and its controls, also at their best epochs."""
    over_trains = own is not None and own.state not in (FLAT, IMPROVING)
    metric = task.metrics[0]
    lines: list[tuple[Verdict, str]] = []
    for first, second, difference in direct_pairs(task):
        verdict, name = verdict_of(difference), spell(first)
        if verdict in ("helps", "hurts"):
            text = f"{name} {_lead(difference, metric, spell(second))}"
        else:
            smallest = size_of(difference.smallest_effect, metric, up=True)
            is_small = f"no difference larger than {smallest}"
            known = is_small if verdict == "no difference" else "undecided"
            text = f"{name} against {spell(second)}: {known}; {name} "
            text += _lead(difference, metric)
        there = task.against(first, second, at_best=True)
        told = _lead(difference, metric)
        if over_trains and there is not None and _lead(there, metric) != told:
            also = _also(there, difference, metric)
            text += f"; if both stop at their best epoch, {also}"
        lines.append((verdict, f"{text}."))
    return lines


def _next(task: TaskSummary, own: Course | None, spell: Spell) -> str:
    """Recommend what to do next, the most important first."""
    if troubles_of(task):
        return "make the baseline learn first (learning rate, epochs)"
    results = task.results[task.metrics[0].name]
    idle = [spell(result.method) for result in results if result.idle]
    steps = [f"let {listed(idle)} act (other options, or more epochs)"] if idle else []
    steps += [*_more_seeds(task, spell), *_other_settings(task, own)]
    if steps:
        return "; ".join(steps)
    leaders = [spell(result.method) for result in leaders_of(task)]
    if leaders:
        return f"use {leaders[0]}{' or another of these' if leaders[1:] else ''}"
    baseline = baseline_of(results)
    if baseline.startswith("plain"):
        return f"keep {spell(baseline)}; averaging gains nothing here"
    return f"keep {spell(baseline)}; no other method gains anything here"


def _more_seeds(task: TaskSummary, spell: Spell) -> list[str]:
    """Say how many seeds would decide what is undecided."""
    results = task.results[task.metrics[0].name]
    undecided = [r for r in results if r.verdict == "undecided"]
    if not undecided:
        return []
    compared = max(1, sum(result.difference is not None for result in results))
    most = max(
        (seeds_to_decide(r.difference, compared) for r in undecided if r.difference),
        default=inf,
    )
    names = listed(spell(result.method) for result in undecided)
    if most <= MOST_SEEDS:
        return [f"about {most:.0f} seeds would decide {names}{_option(task, most)}"]
    return [f"more than {MOST_SEEDS:,} seeds would be needed to decide {names}"]


def _option(task: TaskSummary, seeds: float) -> str:
    """Name the option that adds seeds, if the comparison has one."""
    if task.point or not (task.optimizer or is_script(task.task)):
        return ""
    return f" (--max-seeds {seeds:.0f})" if task.sequential else " (--until-decided)"


def _other_settings(task: TaskSummary, own: Course | None) -> list[str]:
    """Recommend settings that answer what the course of the training leaves open."""
    is_task = bool(task.optimizer) and not is_script(task.task) and not task.point
    if own is None:
        return []
    if own.state == IMPROVING:
        longer = f"--epochs {2 * task.epochs}" if is_task else "train longer"
        return [f"{longer} (does the verdict hold in a longer run?)"]
    if own.state != PEAKED:
        return []
    steps = []
    if leaders_of(task) and not task.point:
        tune = "--tune lr" if is_task else "tune the learning rate of every method"
        steps.append(f"{tune} (does the gain survive?)")
    methods = [r.method for r in task.results[task.metrics[0].name]]
    names = [parse_method_spec(method).name for method in methods]
    stoppable = [n for n in dict.fromkeys(names) if f"{n}{BEST}" in DESCRIPTIONS]
    if is_task and stoppable and not any(name.endswith(BEST) for name in names):
        stopped = " ".join(f"{name}{BEST}" for name in stoppable)
        steps.append(f"--methods {stopped} (stop early on held-out data)")
    return steps


def _lead(d: Difference, metric: Metric, other: str = "") -> str:
    """Say by how much a method leads or trails another one."""
    if d.mean < 0:
        d = replace(d, mean=-d.mean, low=-d.high, high=-d.low)
        verb = "trails"
    else:
        verb = "leads"
    return f"{verb}{f' {other}' if other else ''} by {_size(d, metric)}"


def _also(d: Difference, before: Difference, metric: Metric) -> str:
    """Go on after a lead with another one, of the same sign or not."""
    text = _lead(d, metric)
    is_same = (d.mean < 0) == (before.mean < 0)
    return text.partition(" ")[2] if is_same else f"it {text}"


def _size(change: Difference, metric: Metric) -> str:
    """Format the size of a change with its interval."""
    digits = digits_within(change)
    unit = "points" if metric.unit == "%" else metric.unit
    ends = (fixed(end, digits) for end in (change.low, change.high))
    is_known = change.sd and isfinite(change.low + change.high)
    interval = f" [{', '.join(ends)}]" if is_known else ""
    return f"{fixed(change.mean, digits)}{f' {unit}' if unit else ''}{interval}"
