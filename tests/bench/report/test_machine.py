"""Verdicts for programs: valid against the schema, and conditions that can fail."""

import json
from dataclasses import replace
from importlib.resources import files
from statistics import fmean
from typing import get_args

import pytest
from jsonschema import Draft202012Validator

from switch_ema.bench.errors import UsageError
from switch_ema.bench.report.machine import VERSION, Condition, as_json
from switch_ema.bench.stats.summary import ComparisonSummary
from switch_ema.bench.stats.verdicts import Verdict
from tests.bench.report.synthetic import judged, make_summary, make_task

SCHEMA = json.loads(
    files("switch_ema.bench.report").joinpath("verdict.schema.json").read_text()
)


def parsed(text: str):
    """Parse what a command printed, if it is valid against the schema."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    document = json.loads(text, parse_constant=refuse)
    Draft202012Validator(SCHEMA).validate(document)
    return document


def compared(*tasks):
    return ComparisonSummary("run", list(tasks), config="{}")


def test_the_schema_is_one_and_knows_every_verdict():
    Draft202012Validator.check_schema(SCHEMA)
    task = SCHEMA["properties"]["tasks"]["items"]["properties"]
    method = task["metrics"]["items"]["properties"]["methods"]["items"]["properties"]
    assert method["verdict"]["enum"] == list(get_args(Verdict))
    assert SCHEMA["properties"]["version"]["const"] == VERSION


def test_every_number_is_that_of_the_comparison():
    summary = make_summary()
    document = parsed(as_json(summary))
    assert [task["task"] for task in document["tasks"]] == [
        task.task for task in summary.tasks
    ]
    (first, second), task = document["tasks"][0]["metrics"], summary.tasks[0]
    assert (first["decides"], second["decides"]) == (True, False)
    for shown, result in zip(first["methods"], task.results["accuracy"], strict=True):
        assert (shown["method"], shown["verdict"]) == (result.method, result.verdict)
        assert (shown["mean"], shown["n"]) == (result.last.mean, result.last.n)
        d = result.difference
        if d is None:
            assert shown["difference"] is None
        else:
            ends = (shown["difference"]["low"], shown["difference"]["high"])
            assert ends == (d.low, d.high)
            assert shown["difference"]["smallest_effect"] == 0.5
    assert document["tasks"][0]["leaders"] == ["switch-ema"]
    for shown, cost in zip(document["tasks"][0]["costs"], task.costs, strict=True):
        assert (shown["methods"], shown["seeds"]) == (list(cost.methods), cost.seeds)
        assert shown["train_seconds"] == cost.train_seconds
    for shown in document["tasks"][0]["courses"]:
        curves = task.curves["accuracy"][shown["method"]]
        means = [fmean(values) for values in zip(*curves.values(), strict=True)]
        assert means[shown["best_epoch"] - 1] == max(means)
        assert shown["last"] == pytest.approx(means[-1])


def test_what_is_unknown_is_null_and_nothing_may_be_missing():
    task = make_task("tiny", {"plain": 0.0, "ema": 0.0})
    curves = {"plain": {0: [1.0]}, "ema": {0: [float("nan")]}}
    metric = task.metrics[0]
    results = {metric.name: judged(curves, metric)}
    task = replace(
        task, metrics=(metric,), curves={metric.name: curves}, results=results
    )
    plain, ema = parsed(as_json(compared(task)))["tasks"][0]["metrics"][0]["methods"]
    assert (plain["mean"], plain["sd"], ema["mean"]) == (1.0, None, None)
    assert (ema["verdict"], ema["difference"]) == ("undecided", None)
    assert parsed(as_json(compared()))["tasks"] == []


def test_names_of_unknown_origin_are_escaped():
    task = replace(HELPS, task="\x1b[2J\u2028", problems=["\x1b]0;x\x07 gone"])
    text = as_json(compared(task))
    assert text.isascii() and "\x1b" not in text
    (found,) = parsed(text)["tasks"]
    assert found["task"] == task.task and found["problems"] == task.problems


HELPS = make_task("a", {"plain": 0.0, "ema": 5.0, "swa": -5.0})
SAME = make_task("b", {"plain": 0.0, "ema": 0.0}, noise=0.1)
OPEN = make_task("c", {"plain": 0.0, "ema": 0.3}, noise=3.0)


@pytest.mark.parametrize(
    ("condition", "tasks", "broken"),
    [
        ("helps", [HELPS], ""),
        ("helps", [HELPS, OPEN], "c: ema undecided"),
        ("swa:helps", [HELPS], "a: swa hurts"),
        ("swa:hurts", [HELPS], ""),
        ("no-worse", [SAME], ""),
        ("no-worse", [HELPS], "a: ema helps, swa hurts"),
        ("ema:no-worse", [HELPS, SAME], ""),
        ("ema:no-difference", [HELPS, SAME], "a: ema helps"),
        ("decided", [HELPS, SAME], ""),
        ("decided", [OPEN], "c: ema undecided"),
        ("decided", [], "no baseline has finished"),
    ],
)
def test_conditions(condition, tasks, broken):
    assert Condition.parse(condition).broken_by(compared(*tasks)) == broken


def test_a_baseline_that_did_not_learn_satisfies_nothing():
    task = replace(HELPS, trivial={"a class": {"accuracy": 95.0}})
    assert Condition.parse("helps").broken_by(compared(task)) == (
        "a: plain did not learn"
    )


def test_conditions_that_are_wrong():
    with pytest.raises(UsageError, match="--fail-unless must be helps, no-worse, "):
        Condition.parse("better")
    with pytest.raises(UsageError, match="names lawa, which is not compared with pla"):
        Condition.parse("lawa:helps").broken_by(compared(HELPS))
    with pytest.raises(UsageError, match="names plain, which is not compared"):
        Condition.parse("plain:helps").check_method(["plain", "ema"])
