"""Notes beside the verdicts of a task: costs, shared trainings, looks, shares, skew.

``spell`` maps a method's typed name to the displayed one, as in ``verdict_text``.
"""

from math import isnan

from switch_ema.bench.method_names import uses_held_out
from switch_ema.bench.recipe import Metric
from switch_ema.bench.report.numbers import digits_of, duration, fixed
from switch_ema.bench.report.rows import baseline_of
from switch_ema.bench.report.verdict_text import Spell
from switch_ema.bench.spec import EPOCHS, SHARE, parse_method_spec
from switch_ema.bench.stats.paired import LEVEL
from switch_ema.bench.stats.summary import TaskSummary
from switch_ema.bench.text import counted, listed, printable


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
    """Say what each control with f does, and give the value of f."""
    return [
        printable(
            f"{spell(method)} {_control(method, share)}: f, the share of its progress "
            "that Switch EMA keeps at a switch."
        )
        for method, share in task.shares.items()
    ]


def _control(method: str, share: float) -> str:
    """Say what f stands for in a control.

    >>> _control("ema@epochs*f", 0.431)
    'trains for 0.431 of the epochs'
    """
    changes = parse_method_spec(method).changes
    options = {change.option for change in changes if change.value == SHARE}
    parts = [f"trains at {share:.3g} of the learning rate"] if "lr" in options else []
    if EPOCHS in options:
        parts.append(f"trains for {share:.3g} of the epochs")
    return " and ".join(parts) or f"moves its slow weights by alpha = {share:.3g}"


def missing_sentence(task: TaskSummary) -> str:
    """Count the trainings still to run; empty if all are done."""
    if not task.missing:
        return ""
    verb = "has" if task.missing == 1 else "have"
    cells = counted(task.missing, "training")
    return (
        f"{cells} of this task {verb} not been run yet; these numbers are preliminary."
    )


def price_sentence(task: TaskSummary, spell: Spell = str) -> str:
    """Give the total cost of the verdicts, and of each training; empty if unknown.

    Processor time on a CPU; on a GPU the time that it was in use.
    """
    if not task.costs:
        return ""
    device = task.trained.get("Device", "")
    spent = [
        cost.seeds
        * (
            cost.train_seconds + cost.evaluate_seconds
            if device or isnan(cost.processor_seconds)
            else cost.processor_seconds
        )
        for cost in task.costs
    ]
    known = not any(isnan(cost.processor_seconds) for cost in task.costs)
    unit = (
        f"on {device}" if device else f"of {'processor' if known else 'training'} time"
    )
    text = f"These verdicts cost {_time(sum(spent))} {unit}"
    if len(spent) > 1:
        each = [
            f"{' + '.join(map(spell, cost.methods))} {_time(seconds)}"
            for cost, seconds in zip(task.costs, spent, strict=True)
        ]
        text = f"{text}: {', '.join(each)}"
    return printable(f"{text}.")


def _time(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 10 else duration(seconds)


def looks_sentence(task: TaskSummary) -> str:
    """Say when the task was judged, if seeds are added until it is settled."""
    if not task.sequential:
        return ""
    valid = "p-values and intervals at the last epoch are valid at every look"
    if not task.looks:
        return f"{valid[0].upper()}{valid[1:]}."
    looks = f"{counted(len(task.looks), 'look')}, after {listed(map(str, task.looks))}"
    return f"Seeds are added until all is settled: {looks} seeds; {valid}."


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
