"""Verdicts in words: the numbers they quote, and that they do not contradict."""

import re
from dataclasses import replace

import pytest

from switch_ema.bench.report.rows import make_rows, qualified
from switch_ema.bench.report.verdict_text import (
    best_of,
    best_sentence,
    headline,
    sentence,
    verdicts,
)
from switch_ema.bench.stats.paired import compare
from switch_ema.bench.task import Metric
from tests.bench.report.synthetic import DIGITS, make_task
from tests.bench.stats.test_paired import WORKED, against_plain, ends

ACCURACY = Metric(name="accuracy", higher_is_better=True, unit="%")
LOSS = Metric(name="loss", higher_is_better=False)


@pytest.mark.parametrize(
    ("baseline", "direct"), [("plain", 1), ("ema", 0), ("switch-ema", 0)]
)
def test_nobody_is_compared_with_the_baseline_twice(baseline: str, direct: int) -> None:
    task = make_task("digits", DIGITS)
    curves = task.curves["accuracy"]
    results = compare(curves, higher_is_better=True, baseline=baseline)
    task = replace(task, results={**task.results, "accuracy": results})
    told = [text for _, text in verdicts(task)]
    assert len(told) == len(DIGITS) - 1 + direct
    assert sum(text.startswith("Head to head") for text in told) == direct


def judged(**gains: float):
    return make_task("digits", {"plain": 0.0, **gains}, noise=0.1)


def test_the_best_of_those_that_help_is_named_with_interval_and_n() -> None:
    task = judged(ema=1.0, swa=3.0, lawa=-4.0)
    difference = next(
        r.difference for r in task.results["accuracy"] if r.method == "swa"
    )
    told = best_sentence(task)
    assert told.startswith(f"swa is best: {difference.mean:+.2f} percentage points")
    assert f"CI {difference.low:.2f} to {difference.high:.2f}, n = 8) over" in told
    assert told.endswith("over plain; ema helps; lawa hurts.")


def test_where_nothing_helps_the_baseline_is_named() -> None:
    told = best_sentence(judged(ema=0.0, swa=-2.0))
    assert re.match(r"Nothing beats plain \(\d+\.\d+ %, n = 8\): swa hurts; no", told)
    assert told.endswith("; no difference larger than 0.5 points for ema.")
    assert best_of(judged(ema=0.0, swa=-2.0)) == "nothing beats plain"


def test_one_method_that_helps_is_not_called_the_best() -> None:
    """There is no runner-up that it has beaten."""
    assert best_sentence(judged(ema=5.0, swa=-1.0)).startswith("ema helps: +")
    assert best_of(judged(ema=5.0, swa=-1.0)) == "ema helps"


def test_those_that_cannot_be_told_apart_share_the_lead() -> None:
    task = judged(ema=3.0, swa=3.0, lawa=1.0)
    gains = [r.difference.mean for r in task.results["accuracy"][1:3]]
    told = best_sentence(task)
    names, one, two = ("ema and swa", *gains)
    assert told.startswith(
        f"{names} help most; they cannot be told apart: {one:+.3f} ["
    )
    assert f" and {two:+.3f} [" in told
    assert told.endswith("] percentage points accuracy over plain; lawa helps.")
    assert best_of(task) == "ema and swa help"
    loss = replace(task, metrics=task.metrics[1:])
    assert "apart: test loss lower than plain by +0." in best_sentence(loss)


def test_undecided_is_said_with_what_could_have_been_detected() -> None:
    """It was "Nothing beats plain" beside EMA at +5 [-21, 31]."""
    plain, ema = (80.0, 90.0, 91.0), (95.0, 90.5, 90.5)
    swa = tuple(value - 10 - value / 900 for value in plain)
    curves = {"plain": ends(*plain), "ema": ends(*ema), "swa": ends(*swa)}
    results = compare(curves, higher_is_better=True, smallest_effect=0.5)
    results = {"accuracy": results}
    task = replace(judged(ema=1.0), curves={"accuracy": curves}, results=results)
    size = results["accuracy"][1].difference.detectable
    told = best_sentence(task)
    assert told.startswith(
        f"Undecided: with n = 3 only differences of {size:.0f} points or more can be "
        "detected; ema +5 ["
    )
    assert told.endswith("]; swa hurts.") and best_of(task) == "undecided"
    row = make_rows(task, task.metrics[0])[1]
    assert row.verdict == "undecided"
    assert row.words == f"undecided (detects {size:.0f} points)"


def test_a_baseline_that_did_not_learn_comes_first() -> None:
    task = judged(ema=5.0)
    trivial = {"the most frequent class": {"accuracy": 89.6}, "floor": {"accuracy": 99}}
    task = replace(task, trivial=trivial)
    value = f"{task.results['accuracy'][0].last.mean:.3f}"
    first = (
        f"plain did not learn: {value} % is no better than the most frequent class "
        "(89.600 %). ema helps"
    )
    assert best_sentence(task).startswith(first)
    assert headline(task).startswith(first)
    assert best_of(task) == "plain did not learn; ema helps"
    for small in (89.0, 1.0):
        learned = replace(task, trivial={"a class": {"accuracy": small}})
        assert best_sentence(learned).startswith("ema helps")


def test_a_baseline_that_diverged_comes_first() -> None:
    first = "plain diverged or did not finish in {} of 8 seeds"
    for lost, rest in (
        (6, ". Undecided: with n = 2"),
        (8, ", so there is nothing to compare with."),
    ):
        task = judged(ema=5.0)
        curves = {m: dict(seeds) for m, seeds in task.curves["accuracy"].items()}
        for seed in range(lost):
            curves["plain"][seed] = [*curves["plain"][seed][:-1], float("nan")]
        results = compare(curves, higher_is_better=True, smallest_effect=0.5)
        task = replace(task, curves={"accuracy": curves}, results={"accuracy": results})
        assert best_sentence(task).startswith(first.format(lost) + rest)
        assert best_of(task) == "plain diverged; undecided"
    assert best_sentence(task).endswith("nothing to compare with.")
    assert headline(task) == best_sentence(task)


def test_a_baseline_that_was_tuned_to_fewer_epochs_has_finished() -> None:
    task = judged(ema=5.0)
    curves = {m: dict(seeds) for m, seeds in task.curves["accuracy"].items()}
    curves["plain"] = {seed: curve[-2:] for seed, curve in curves["plain"].items()}
    assert best_sentence(replace(task, curves={"accuracy": curves})).startswith("ema")


def test_differences_of_losses_say_which_sign_is_better() -> None:
    task = judged(ema=5.0, swa=-1.0)
    task = replace(task, metrics=task.metrics[1:])
    better = r"ema helps: test loss 0\.\d+ lower than plain \(97% CI 0\.\d+ to 0"
    assert re.match(better, best_sentence(task))
    task = make_task("digits", {"plain": 0.0, "ema": 0.1}, noise=2.0)
    told = best_sentence(replace(task, metrics=task.metrics[1:]))
    assert told.endswith("] (positive is lower, so better).")


def test_the_baseline_alone_is_nothing_to_compare() -> None:
    assert best_sentence(judged()) == (
        "Nothing to compare: only the baseline was trained."
    )


def test_too_few_seeds_are_no_reason_to_praise_anybody() -> None:
    task = judged(ema=5.0)
    curves = {
        method: {seed: values for seed, values in seeds.items() if seed < 2}
        for method, seeds in task.curves["accuracy"].items()
    }
    results = compare(curves, higher_is_better=True, baseline="plain")
    task = replace(task, results={**task.results, "accuracy": results})
    assert best_sentence(task).startswith(
        "Undecided: with n = 2 there are too few seeds, and a verdict needs 3; ema +"
    )


def say(plain, method, metric):
    return sentence(
        against_plain(plain, method, metric.higher_is_better), metric=metric
    )


def test_sentences_where_higher_is_better():
    plain, more = ends(90.0, 91.0, 92.0, 93.0), ends(92.31, 93.52, 94.38, 95.39)
    # Differences 2.31, 2.52, 2.38, 2.39: sd 0.0876, half width 0.1696, t = 54.8
    assert say(plain, more, ACCURACY) == (
        "ema helps: +2.40 % accuracy over plain "
        "(97% CI 2.23 to 2.57, n = 4, p < 0.0001 after Holm)."
    )
    hurts = "ema hurts: -2.40 % accuracy vs plain (97% CI -2.57 to -2.23, n = 4, "
    assert say(more, plain, ACCURACY).startswith(hurts)
    assert say(*WORKED, ACCURACY) == (
        "Undecided whether ema helps: +2.0 % accuracy over plain "
        "(97% CI -1.3 to 5.3, n = 3, p = 0.074 after Holm); n = 3 can only detect 4.2 "
        "points or more (with 80% power)."
    )


def test_a_p_value_that_stands_by_itself_is_not_called_corrected():
    text = sentence(against_plain(*WORKED), metric=ACCURACY, corrected=False)
    assert "n = 3, p = 0.074, not corrected)" in text
    assert "Holm" not in text


def test_sentences_where_lower_is_better():
    less, more = ends(0.10, 0.11, 0.12, 0.13), ends(0.331, 0.362, 0.358, 0.369)
    # Differences 0.231, 0.252, 0.238, 0.239 in the direction that is said.
    numbers = "than plain (lower is better; 97% CI 0.223 to 0.257, n = 4, "
    assert say(more, less, LOSS).startswith(f"ema helps: loss 0.240 lower {numbers}")
    assert say(less, more, LOSS).startswith(f"ema hurts: loss 0.240 higher {numbers}")
    worse = "loss 2.0 higher than plain (lower is better; 97% CI -1.3 to 5.3, "
    assert f"Undecided whether ema helps: {worse}" in say(*WORKED, LOSS)


def test_a_difference_smaller_than_what_matters_is_a_verdict() -> None:
    plain, ema = ends(*[90.0] * 6), ends(90.1, 90.2, 90.3, 89.9, 89.8, 89.69)
    result = against_plain(plain, ema, smallest_effect=0.5)
    assert sentence(result, metric=ACCURACY).startswith(
        "No difference larger than 0.5 points between ema and plain: -0.002 % accuracy"
    )
    assert qualified(result, ACCURACY) == "no difference larger than 0.5 points"
    # 1% of a loss of 90.12 is never rounded down.
    result = against_plain(plain, ema, smallest_effect=0.9012)
    assert qualified(result, LOSS) == "no difference larger than 0.91"


def test_sentences_without_a_test():
    plain = ends(1.0, 2.0, 0.0)
    same = "nearly the same in all n = 3 seeds, p = 1, sign test, after Holm)."
    assert say(plain, plain, ACCURACY).endswith(same)
    assert say(plain, {}, LOSS) == (
        "Undecided whether ema helps: too few seeds finished to compare it with plain."
    )
    text = sentence(against_plain(plain, plain), metric=ACCURACY, corrected=False)
    assert text.endswith("in all n = 3 seeds, p = 1, sign test, not corrected).")
    text = sentence(compare({"plain": plain}, higher_is_better=True)[0], metric=LOSS)
    assert text == "plain is the baseline: 1 loss (sd 1, n = 3)."
    two = say(ends(1.0, 2.0), ends(1.5, 2.5), ACCURACY)
    assert two == (
        "Undecided whether ema helps: +0.50 % accuracy over plain with n = 2; a "
        "verdict needs at least 3."
    )
    lost = compare({"plain": ends(float("nan"))}, higher_is_better=True)[0]
    assert sentence(lost, metric=LOSS) == (
        "plain is the baseline but has no finite loss."
    )


def test_skew_is_said_beside_the_verdict():
    gains = [0.31, 0.32, 0.34, 0.35, 0.3, 0.29, 0.33, 0.28, 0.27, 0.36, 0.37]
    few = ends(*range(8)), ends(*(s + gains[s] for s in range(7)), 7 - 0.1)
    text = say(*few, ACCURACY)
    assert text.startswith("ema helps: +0.27 % accuracy over plain (97% CI 0.12 to")
    assert text.endswith(
        "p = 0.0015 after Holm); with an adjustment for skew, p = 0.21."
    )
    sure = ends(*range(8)), ends(*(s + gains[s] for s in range(7)), 7 + 0.2)
    assert say(*sure, ACCURACY).endswith("p < 0.0001 after Holm).")
    enough = ends(*range(12)), ends(*(s + gains[s] for s in range(11)), 11 + 0.1)
    text = say(*enough, ACCURACY)
    assert "p = 0.002, t-test adjusted for skew, after Holm)." in text
    collapsed = ends(*range(12)), ends(*(s + gains[s] for s in range(11)), 11 - 0.2)
    assert say(*collapsed, ACCURACY).startswith("Undecided whether ema helps: +0.28 %")
    alone = sentence(against_plain(*enough), metric=ACCURACY, corrected=False)
    assert alone.endswith(", t-test adjusted for skew, not corrected).")
