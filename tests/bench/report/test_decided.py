"""How a comparison was decided: rules, looks, n, and what would change a verdict."""

import json
from dataclasses import replace

from switch_ema.bench.report.decided import Hinge, decision
from switch_ema.bench.report.page import render_page
from switch_ema.bench.stats.paired import compare
from switch_ema.bench.stats.summary import ComparisonSummary, TaskSummary
from tests.bench.report.synthetic import LOSS, make_diverged_task, make_task


def rules_of(*tasks: TaskSummary, **config: object) -> dict[str, str]:
    summary = ComparisonSummary("run", [*tasks], json.dumps({"seeds": 8} | config))
    return dict(decision(summary, str).rules)


def hinges_of(*gains: float, smallest: float = 0.5) -> Hinge:
    plain = {seed: [90.0 + seed] for seed in range(len(gains))}
    ema = {seed: [90.0 + seed + gain] for seed, gain in enumerate(gains)}
    curves = {"plain": plain, "ema": ema}
    task = make_task("digits", {"plain": 0.0})
    results = compare(curves, higher_is_better=True, smallest_effect=smallest)
    task = replace(
        task,
        metrics=task.metrics[:1],
        curves={"accuracy": curves},
        results={"accuracy": results},
    )
    ((_, (hinge,)),) = decision(ComparisonSummary("run", [task], "{}"), str).hinges
    return hinge


def test_the_rules_name_all_that_was_fixed() -> None:
    task = make_task("digits", {"plain": 0.0, "ema": 1.0, "swa": 0.0})
    assert rules_of(task, first_seed=100) == {
        "Seeds": "100 to 107, the same for every method",
        "Methods": "plain (baseline), ema and swa",
        "Decides": "accuracy (%) at the last epoch, higher is better",
        "Test": (
            "two-sided paired t-test at the level of 3%, Holm-corrected over 2 methods"
        ),
        "Smallest effect of interest": "0.5 points (default for metrics in %)",
        "Settings": "as given, not tuned",
        "Stopping rule": "after 8 seeds, fixed beforehand: one look",
    }


def test_looks_at_a_run_that_was_extended_are_counted() -> None:
    task = make_task("digits", {"plain": 0.0, "ema": 1.0})
    told = rules_of(task, rounds=[2, 4])["Stopping rule"]
    assert told.startswith("seeds were added to a finished run: 3 looks, with 2, 4 and")
    assert told.endswith("p-values and intervals do not allow for the earlier ones")


def test_an_effect_that_was_given_may_have_been_given_late() -> None:
    task = make_task("digits", {"plain": 0.0, "ema": 1.0})
    told = rules_of(task, smallest_effect=0.2)["Smallest effect of interest"]
    assert told.endswith("(--smallest-effect, which can be changed after training)")


def test_tasks_that_differ_are_told_apart_and_tuning_is_told() -> None:
    one = make_task("digits", {"plain": 0.0, "ema": 1.0})
    other = replace(one, task="text", metrics=(LOSS,))
    told = rules_of(one, other, tune="lr")
    assert told["Decides"] == (
        "digits: accuracy (%) at the last epoch, higher is better; text: test loss at "
        "the last epoch, lower is better"
    )
    assert told["Settings"] == "tuned on a validation split with other seeds"


def test_a_clear_verdict_hangs_on_no_seed() -> None:
    hinge = hinges_of(2.0, 2.1, 1.9, 2.2, 2.05)
    assert (hinge.verdict, hinge.n) == ("helps", "5")
    # Half the width of the interval: 0.1118 * t(0.985, 4) / sqrt(5).
    assert hinge.change == "a mean difference below 0.16 points (now 2.05)"
    assert hinge.seeds == "none"


def test_the_seeds_that_a_verdict_hangs_on_are_named() -> None:
    hinge = hinges_of(2.0, 2.1, 1.9, 2.2, -1.0)
    assert hinge.verdict == "undecided"
    assert hinge.change.startswith("about ") and "seeds, if mean" in hinge.change
    assert hinge.seeds == "4 (helps without it)"


def test_with_the_fewest_seeds_a_verdict_hangs_on_each() -> None:
    assert "0 (undecided without it), 1 (" in hinges_of(2.0, 2.1, 1.9).seeds
    barely = hinges_of(0.4, 2.0, 2.9, 0.8, 1.9, smallest=0.1)
    assert barely.verdict == "helps"
    assert barely.seeds == "any of 4"


def test_the_smallest_effect_decides_about_no_difference() -> None:
    hinge = hinges_of(0.1, -0.1, 0.05, -0.05, 0.0)
    assert hinge.verdict == "no difference"
    low = float(hinge.change.removeprefix("a smallest effect below ").split()[0])
    gains = (0.1, -0.1, 0.05, -0.05, 0.0)
    assert hinges_of(*gains, smallest=low * 1.02).verdict == "no difference"
    assert hinges_of(*gains, smallest=low * 0.9).verdict == "undecided"


def test_n_counts_the_pairs_that_finished() -> None:
    task = make_diverged_task()
    ((_, hinges),) = decision(ComparisonSummary("run", [task], "{}"), str).hinges
    assert {hinge.n for hinge in hinges if hinge.method == "lookahead"} == {"7/8"}


def test_methods_that_did_not_act_hang_on_their_options() -> None:
    runs = {seed: [90.0 + seed] for seed in range(5)}
    other = {seed + 50: [91.0 - seed] for seed in range(5)}
    curves = {"plain": runs, "swa": runs, "ema": other}
    idle = {"swa": "start=40 is after the last epoch"}
    task = replace(
        make_task("digits", {"plain": 0.0}),
        curves={"accuracy": curves},
        results={"accuracy": compare(curves, higher_is_better=True, idle=idle)},
    )
    found = decision(ComparisonSummary("run", [task], "{}"), str)
    swa, _ = found.hinges[0][1]
    assert (swa.verdict, swa.n, swa.seeds) == ("did not act", "-", "none")
    assert swa.change.startswith("options with which it acts: start=40 is")
    assert dict(found.rules)["Test"].endswith(
        "Holm-corrected over 1 method; Welch's unpaired test for ema on digits"
    )


def test_the_page_has_the_section() -> None:
    task = make_task("digits", {"plain": 0.0, "ema": 1.0})
    page = render_page(ComparisonSummary("run", [task], '{"seeds": 8}'))
    assert '<h2 id="decided">How this was decided</h2>' in page
    assert "after 8 seeds, fixed beforehand: one look" in page
    assert "a mean difference below " in page


def test_seeds_that_were_added_until_it_was_decided_are_told() -> None:
    task = make_task("digits", {"plain": 0.0, "ema": 1.0})
    other = replace(make_task("moons", {"plain": 0.0, "ema": 1.0}), sequential=True)
    tasks = (
        replace(task, sequential=True, looks=(12,)),
        replace(other, looks=(12, 16)),
    )
    told = rules_of(*tasks, rounds=[12], seeds=16, until_decided=True, max_seeds=32)
    assert told["Stopping rule"] == (
        "seeds are added until every verdict is settled, up to 32 (digits: 1 look, "
        "after 12 seeds; moons: 2 looks, after 12 and 16 seeds); p-values and "
        "intervals are valid at every look"
    )
    assert told["Test"].startswith("two-sided paired t-test, valid at every look, at")
