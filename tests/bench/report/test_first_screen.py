"""The first screen: over-training, best epochs, head to head, and what to do next."""

import random
import re
from dataclasses import replace

import pytest

from switch_ema.bench.report.first_screen import first_screen
from switch_ema.bench.stats.paired import Curves, compare
from switch_ema.bench.stats.summary import TaskSummary
from switch_ema.bench.task import Metric
from tests.bench.report.synthetic import ACCURACY, make_task

EPOCHS = 24
PEAKED = [90 - abs(8 - epoch) for epoch in range(EPOCHS)]
"""Best in the ninth epoch, 15 points lower at the end."""
FLAT = [min(90.0, 70 + 5 * epoch) for epoch in range(EPOCHS)]
RISING = [60.0 + epoch for epoch in range(EPOCHS)]


def curves_of(
    means: dict[str, list[float]], *, seeds: int = 8, noise: float = 0.1
) -> Curves:
    draw = random.Random(0)
    return {
        method: {
            seed: [value + draw.gauss(0, noise) for value in mean]
            for seed in range(seeds)
        }
        for method, mean in means.items()
    }


def task_of(
    means: dict[str, list[float]],
    metric: Metric = ACCURACY,
    *,
    schedule: str = "constant",
    **options,
) -> TaskSummary:
    curves = curves_of(means, **options)
    results = compare(
        curves,
        baseline=next(iter(means)),
        higher_is_better=metric.higher_is_better,
        smallest_effect=0.5,
    )
    return replace(
        make_task("digits", {"plain": 0.0}),
        metrics=(metric,),
        curves={metric.name: curves},
        results={metric.name: results},
        epochs=EPOCHS,
        trained={"Learning rate": schedule},
    )


def texts(task: TaskSummary) -> list[str]:
    return [text for _, text in first_screen(task)]


def test_over_training_is_told_with_its_peak_and_what_it_cost() -> None:
    course, best, *_ = texts(task_of({"plain": PEAKED, "ema": FLAT}))
    assert course.startswith("plain peaked near epoch 9 at 90.0")
    assert "and lost 15.0" in course
    assert course.endswith("by the last epoch: this run over-trains.")
    # At the last epoch ema is 15 points ahead; at the best epochs they are equal.
    assert best.startswith("If both stop at their best epoch, ema ")
    assert "plain by 0." in best


def test_every_seed_at_its_own_best_epoch_favours_noisy_curves() -> None:
    steady = curves_of({"ema": FLAT}, noise=0.1)
    jumpy = curves_of({"plain": [*FLAT[:-1], 80.0]}, noise=2.0)
    task = task_of({"plain": PEAKED, "ema": FLAT})
    curves = {**jumpy, **steady}
    results = compare(curves, higher_is_better=True, smallest_effect=0.5)
    task = replace(task, curves={"accuracy": curves}, results={"accuracy": results})
    line = next(text for text in texts(task) if text.startswith("If both stop"))
    assert line.startswith("If both stop at their best epoch, ema ")
    same, _, own = line.partition("; if each seed stops at its own best epoch, ")
    assert "trails" in (own if own.startswith("it ") else same)
    assert float(own.partition("by ")[2].split()[0]) > 2


def test_switch_ema_is_compared_with_ema_at_the_last_and_the_best_epochs() -> None:
    slower = [value - 3 for value in PEAKED]
    later = [*slower[:-6], *FLAT[-6:]]
    task = task_of({"plain": slower, "ema": PEAKED, "switch-ema": later})
    (line,) = [text for text in texts(task) if text.startswith("switch-ema ")]
    assert line.startswith("switch-ema leads ema by 1")
    assert "; if both stop at their best epoch, " in line


@pytest.mark.parametrize(
    ("gain", "words"),
    [
        (2.0, "switch-ema leads ema by "),
        (-2.0, "switch-ema trails ema by "),
        (0.0, "switch-ema against ema: no difference larger than 0.5 points; switch"),
    ],
)
def test_the_head_to_head_says_who_is_ahead(gain: float, words: str) -> None:
    means = {"plain": FLAT, "ema": FLAT, "switch-ema": [v + gain for v in FLAT]}
    told = texts(task_of(means))
    assert any(text.startswith(words) for text in told)
    assert not any("best epoch" in text for text in told), "as good as the last"


def test_under_fitting_asks_for_more_epochs() -> None:
    course, *_, advice = texts(task_of({"plain": RISING, "ema": RISING}))
    assert course.startswith("plain was still improving: it gained 6.")
    assert course.endswith("in the last 6 epochs: this run under-fits.")
    assert advice == "Next: --epochs 48 (does the verdict hold in a longer run?)."


def test_a_falling_learning_rate_is_no_under_fitting() -> None:
    task = task_of({"plain": RISING, "ema": RISING}, schedule="cosine")
    assert texts(task)[0].endswith("in the last 6 epochs.")


def test_a_flat_run_without_a_winner_keeps_the_baseline() -> None:
    course, advice = texts(task_of({"plain": FLAT, "ema": FLAT}))
    assert course == (
        "plain had flattened: it changed by less than 0.5 points in the last 6 epochs."
    )
    assert advice == "Next: keep plain; averaging gains nothing here."
    advice = texts(task_of({"ema": FLAT, "switch-ema": FLAT}))[-1]
    assert advice == "Next: keep ema; no other method gains anything here."


def test_a_flat_run_with_a_winner_uses_it() -> None:
    task = task_of({"plain": FLAT, "ema": [value + 3 for value in FLAT]})
    assert texts(task)[-1] == "Next: use ema."


def test_over_training_asks_whether_the_gain_survives() -> None:
    means = {"plain": PEAKED, "ema": FLAT, "swa": PEAKED}
    advice = texts(task_of(means))[-1]
    assert advice == (
        "Next: --tune lr (does the gain survive?); --methods plain+best ema+best (stop "
        "early on held-out data)."
    )
    tuned = texts(replace(task_of(means), point="tuned"))[-1]
    assert "--tune" not in tuned
    of_logs = texts(replace(task_of(means), optimizer=""))[-1]
    assert of_logs == (
        "Next: tune the learning rate of every method (does the gain survive?)."
    )
    alone = texts(task_of({"plain": PEAKED, "ema+best": FLAT}))[-1]
    assert "+best" not in alone.removeprefix("Next: use ema+best")


def test_an_undecided_comparison_asks_for_seeds() -> None:
    task = task_of({"plain": FLAT, "ema": FLAT}, noise=1.5)
    course, *_, advice = texts(task)
    assert course == (
        "n = 8 is too few to tell whether plain over-trained or was still improving."
    )
    words = advice.split()
    assert (words[:2], words[3:]) == (
        ["Next:", "about"],
        ["seeds", "would", "decide", "ema", "(--until-decided)."],
    )
    of_logs = texts(replace(task, optimizer=""))[-1]
    assert of_logs == advice.replace(" (--until-decided)", "")
    seeds = int(words[2])
    assert 20 < seeds < 400


def test_intervals_are_valid_at_every_look_if_the_verdicts_are() -> None:
    task = task_of({"plain": PEAKED, "ema": FLAT}, noise=2.0, seeds=16)
    results = compare(
        task.curves["accuracy"],
        higher_is_better=True,
        smallest_effect=0.5,
        sequential=True,
    )
    looked = replace(task, results={"accuracy": results}, sequential=True)

    def widths(told: str) -> list[float]:
        ends = re.findall(r"\[(-?[\d.]+), (-?[\d.]+)\]", told)
        return [float(high) - float(low) for low, high in ends]

    for fixed, wide in zip(texts(task)[:2], texts(looked)[:2], strict=True):
        pairs = list(zip(widths(fixed), widths(wide), strict=True))
        assert pairs and all(wider > narrow for narrow, wider in pairs)
    few = task_of({"plain": FLAT, "ema": FLAT}, noise=1.5, seeds=4)
    results = compare(
        few.curves["accuracy"],
        higher_is_better=True,
        smallest_effect=0.5,
        sequential=True,
    )
    few = replace(few, results={"accuracy": results}, sequential=True)
    told = texts(few)
    assert "[-, -]" not in " ".join(told), "too few seeds for an interval"
    assert re.search(r"decide ema \(--max-seeds \d+\)\.$", told[-1])


def test_more_seeds_than_anyone_trains_are_not_recommended() -> None:
    task = task_of({"plain": FLAT, "ema": FLAT})
    curves = {
        "plain": {seed: [50.0 + seed] for seed in range(8)},
        "ema": {seed: [50.0 + seed + 20 * (-1) ** seed] for seed in range(8)},
    }
    results = compare(curves, higher_is_better=True, smallest_effect=0.5)
    task = replace(task, curves={"accuracy": curves}, results={"accuracy": results})
    assert texts(task) == ["Next: more than 1,000 seeds would be needed to decide ema."]


def test_a_baseline_that_has_not_learned_comes_before_everything_else() -> None:
    task = replace(
        task_of({"plain": PEAKED, "ema": FLAT}),
        trivial={"the most frequent class": {"accuracy": 95.0}},
    )
    assert texts(task)[-1] == (
        "Next: make the baseline learn first (learning rate, epochs)."
    )


def test_a_method_that_did_not_act_gets_other_options() -> None:
    task = task_of({"plain": FLAT, "ema": FLAT, "swa": FLAT})
    results = compare(
        task.curves["accuracy"],
        higher_is_better=True,
        smallest_effect=0.5,
        idle={"swa": "start=40 is after the last epoch"},
    )
    advice = texts(replace(task, results={"accuracy": results}))[-1]
    assert advice == "Next: let swa act (other options, or more epochs)."


def test_best_epochs_that_are_the_last_ones_are_not_repeated() -> None:
    rising = [float(5 * epoch) for epoch in range(4)]
    means = {"plain": rising, "ema": rising, "switch-ema": rising}
    course, direct, _ = texts(task_of(means, seeds=2))
    assert course.startswith("n = 2 is too few to tell")
    assert direct.startswith("switch-ema against ema: undecided; switch-ema ")
    assert "best epoch" not in direct


def test_losses_say_what_is_better() -> None:
    loss = Metric(name="loss", higher_is_better=False)
    falling = [10 - value / 10 for value in PEAKED]
    flat = [10 - value / 10 for value in FLAT]
    task = task_of({"plain": falling, "ema": flat}, loss, noise=0.02)
    course, best, *_ = texts(task)
    assert course.startswith("plain was best near epoch 9 at 1.0")
    assert "and rose by 1.49" in course
    assert "ema leads plain by" in best or "ema trails plain by" in best


def test_one_seed_has_nothing_to_say() -> None:
    task = task_of({"plain": FLAT, "ema": FLAT}, seeds=1)
    assert first_screen(task) == []


def test_one_value_per_seed_has_no_course() -> None:
    task = task_of({"plain": [90.0], "ema": [95.0], "switch-ema": [97.0]})
    assert texts(task) == [
        next(text for text in texts(task) if text.startswith("switch-ema leads ema")),
        "Next: use switch-ema.",
    ]


def test_names_are_spelled_as_the_report_does() -> None:
    task = task_of({"plain": PEAKED, "ema": FLAT, "switch-ema": FLAT})
    told = " ".join(text for _, text in first_screen(task, str.upper))
    assert "PLAIN peaked" in told and "SWITCH-EMA against EMA" in told
    assert "--methods plain+best" in told, "what can be typed"
