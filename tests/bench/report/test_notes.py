"""What is said beside verdicts."""

from dataclasses import replace
from math import nan

from switch_ema.bench.report.notes import (
    looks_sentence,
    missing_sentence,
    price_sentence,
    shared_cost_sentence,
    skew_sentence,
    trivial_sentence,
)
from switch_ema.bench.stats.summary import Cost
from tests.bench.report.synthetic import make_task


def test_verdicts_stand_beside_their_cost() -> None:
    task = make_task("digits", {"plain": 0.0, "switch-ema": 1.0})
    costs = [
        Cost(("plain", "ema"), 8, 10.0, 5.0, 1.0, processor_seconds=20.0),
        Cost(("switch-ema",), 8, 12.0, 3.0, 1.0, processor_seconds=0.5),
    ]
    assert price_sentence(replace(task, costs=costs)) == (
        "These verdicts cost 3 min of processor time: "
        "plain + ema 3 min, switch-ema 4 s."
    )
    on_gpu = replace(task, costs=costs[:1], trained={"Device": "NVIDIA A100"})
    assert price_sentence(on_gpu) == "These verdicts cost 2 min on NVIDIA A100."
    unmeasured = [replace(cost, processor_seconds=nan) for cost in costs]
    text = price_sentence(replace(task, costs=unmeasured))
    assert text.startswith("These verdicts cost 4 min of training time: plain + ema 2")
    assert price_sentence(replace(task, costs=[])) == ""


def test_shared_and_held_out_trainings_are_explained() -> None:
    task = make_task("digits", {"plain": 0.0, "switch-ema": 1.0})
    shared = Cost(("plain", "ema+best"), 8, 10.0, 5.0, 1.0, processor_seconds=20.0)
    alone = Cost(("switch-ema",), 8, 12.0, 3.0, 1.0, processor_seconds=0.5)
    text = shared_cost_sentence(replace(task, costs=[shared, alone]))
    assert text.startswith("Methods that share a training (plain and ema+best) only")
    assert "Every other row is a separate training." in text
    assert "held out from every method and guides ema+best; reported" in text
    text = shared_cost_sentence(replace(task, costs=[alone]))
    assert text == "Every method is trained separately."


def test_what_does_not_apply_is_not_said() -> None:
    task = make_task("digits", {"plain": 0.0, "ema": 1.0})
    for note in (looks_sentence, missing_sentence, skew_sentence, trivial_sentence):
        assert note(task) == ""
    assert missing_sentence(replace(task, missing=1)) == (
        "1 training of this task has not been run yet; these numbers are preliminary."
    )
    looked = replace(task, sequential=True, looks=(8, 12))
    assert "2 looks, after 8 and 12 seeds; p-values" in looks_sentence(looked)
