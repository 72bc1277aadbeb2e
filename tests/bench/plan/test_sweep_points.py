"""Sweeps: which settings are compared, and what is refused."""

import pytest

from switch_ema.bench.errors import UsageError
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.plan.sweep_points import (
    dump_points,
    load_points,
    plan_points,
    sweep_points,
)


def config(sweep, **more):
    settings = {"tasks": ("digits",), "methods": ("plain", "ema", "switch-ema")}
    return CompareConfig(**{**settings, "seeds": 1, "sweep": sweep, **more})


def groups(given):
    cells = plan_points(given, sweep_points(given))
    return [(cell.task, cell.methods) for cell in cells]


def test_a_learning_rate_is_one_training_for_all_that_read():
    assert groups(config("lr=0.1,0.2")) == [
        ("digits", ("plain@lr=0.1", "ema@lr=0.1")),
        ("digits", ("plain@lr=0.2", "ema@lr=0.2")),
        ("digits", ("switch-ema@lr=0.1",)),
        ("digits", ("switch-ema@lr=0.2",)),
    ]


def test_a_decay_of_methods_that_read_costs_no_training():
    assert groups(config("decay=0.9,0.99")) == [
        ("digits", ("plain", "ema:decay=0.9", "ema:decay=0.99")),
        ("digits", ("switch-ema:decay=0.9",)),
        ("digits", ("switch-ema:decay=0.99",)),
    ]


def test_an_option_of_the_task_gives_other_tasks():
    assert groups(config("noise=0,0.3", methods=("plain",))) == [
        ("digits:noise=0", ("plain",)),
        ("digits:noise=0.3", ("plain",)),
    ]


def test_an_optimizer_by_name_is_varied_too():
    found = groups(config("momentum=0,0.9", methods=("plain",), optimizer="sgd"))
    assert found == [
        ("digits", ("plain@momentum=0",)),
        ("digits", ("plain@momentum=0.9",)),
    ]


def test_a_method_that_an_optimizer_brings_along_is_swept_with_the_others():
    found = groups(config("lr=0.1,0.2", methods=("plain",), optimizer="sasam"))
    assert found == [
        ("digits", ("plain@lr=0.1", "swa@lr=0.1")),
        ("digits", ("plain@lr=0.2", "swa@lr=0.2")),
    ]


def test_points_are_read_back():
    points = sweep_points(config("lr=0.1,0.2"))
    assert load_points({"points": dump_points(points)}) == points
    with pytest.raises(UsageError, match="list of points is damaged"):
        load_points({"points": "[1]"})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sweep": "speed=1,2"}, "the tasks, the methods nor the optimizer have an"),
        ({"sweep": "speed=1,2", "optimizer": "sgd"}, "sgd has no option speed"),
        (
            {"sweep": "noise=0,1", "tasks": ("digits:noise=0.5",)},
            "digits:noise=0.5 sets noise itself",
        ),
        (
            {"sweep": "noise=0,1", "tasks": ("digits", "mnist1d")},
            "mnist1d has no option 'noise'",
        ),
        (
            {"sweep": "decay=0.9,0.99", "methods": ("ema", "ema:decay=0.9")},
            "two methods would be ema:decay=0.9 at decay = 0.9",
        ),
        (
            {"sweep": "decay=0.9,0.99", "methods": ("plain", "ema:decay=0.5")},
            "every method sets decay itself",
        ),
        ({"sweep": "lr=0.1,0.2", "tune": "lr"}, "sweep and tune cannot be combined"),
        ({"sweep": "lr=0.1"}, "at least two different values"),
    ],
)
def test_what_cannot_be_swept(given, message):
    with pytest.raises(UsageError, match=message):
        groups(config(**given))
