"""From a configuration to cells."""

import dataclasses
from pathlib import Path

import pytest

from switch_ema.bench.errors import UsageError
from switch_ema.bench.plan.cells import SEEDS_AT_ONCE, make_plan
from switch_ema.bench.plan.config import CompareConfig


def groups(config):
    return [(cell.task, cell.methods, cell.seeds) for cell in make_plan(config)]


def test_seed_by_seed_baseline_first():
    config = CompareConfig(
        tasks=("digits", "noisy-digits"), methods=("plain", "ema", "pswa"), seeds=2
    )
    assert groups(config) == [
        (task, methods, (seed,))
        for seed in (0, 1)
        for task in ("digits", "noisy-digits")
        for methods in (("plain", "ema"), ("pswa",))
    ]


def test_tiny_tasks_train_their_seeds_stacked():
    config = CompareConfig(
        tasks=("moons",), methods=("plain", "switch-ema"), seeds=SEEDS_AT_ONCE + 2
    )
    sizes = [(methods, len(seeds)) for _, methods, seeds in groups(config)]
    assert sizes == [
        (("plain",), SEEDS_AT_ONCE),
        (("switch-ema",), SEEDS_AT_ONCE),
        (("plain",), 2),
        (("switch-ema",), 2),
    ]


def test_sasam_brings_its_averaging_along():
    config = CompareConfig(
        tasks=("digits",), methods=("plain",), optimizer="sasam", seeds=1
    )
    assert groups(config) == [("digits", ("plain", "swa"), (0,))]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tasks": ("moons",), "optimizer": "lamb"}, "and lamb would mix them"),
        ({"optimizer": "schedulefree-sgd", "schedule": "cosine"}, "schedule"),
        ({"precision": "fp8"}, "precision must be no, bf16, fp16 or auto, got 'fp8'"),
        ({"schedule": "zigzag"}, "zigzag"),
        ({"tasks": ("digits:length=3",)}, "length"),
        ({"tasks": ("moons",), "clip": 1.0}, "and clip would mix them"),
    ],
)
def test_what_cannot_be_planned(options, message):
    with pytest.raises(UsageError, match=message):
        make_plan(CompareConfig(**options))


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        (
            '{"switch_ema": {"decay": 0.9}}',
            "unknown method 'switch_ema'",
        ),
        ('{"ema": {"decay": lambda step: 0.9}}', "decay of ema must be a plain value"),
    ],
)
def test_recipes_that_cannot_be_kept(tiny, methods, message):
    path = Path(tiny.partition(":")[0])
    recipe = f"epochs=3, methods={methods}"
    path.write_text(path.read_text().replace("epochs=3", recipe))
    with pytest.raises(UsageError, match=message):
        make_plan(CompareConfig(tasks=(tiny,)))


def test_a_recipe_may_follow_the_options():
    """More steps in an epoch, a longer average: a switch keeps as much."""
    plans = [
        make_plan(CompareConfig(tasks=(task,), seeds=1))
        for task in ("images", "images:size=320", "images:batch=8")
    ]
    decays = [plan[0].recipe.methods["ema"]["decay"] for plan in plans]
    assert decays[1] < decays[0] < decays[2]


def test_cells_keep_the_names_that_stored_runs_know():
    """A field that is added later changes no name while it has its default."""
    config = CompareConfig(
        tasks=("digits", "moons"),
        methods=("plain", "ema:decay=0.9", "switch-ema"),
        seeds=2,
        epochs=3,
    )
    names = [cell.id for cell in make_plan(config)]
    assert names[:3] == ["5d1a30a3b01d1616", "74050a8877f12eb4", "24eafebf46ac5f1b"]
    assert names[3:] == ["0e9900a4aeeb3fd5", "f31a2cb530a9d7a6", "0c93b95be1a8cd4e"]
    assert config.earlier_name == "digits-moons-f12092"
    assert config.default_name == "digits-moons-0acf4b"
    rarely = make_plan(dataclasses.replace(config, evaluate_every=2))
    assert not {cell.id for cell in rarely} & set(names)


def test_methods_share_a_training_if_they_change_the_optimizer_alike():
    methods = ("plain", "ema@lr*0.5", "swa@lr*1", "lawa@lr*0.5", "ema@lr*f")
    config = CompareConfig(tasks=("digits",), methods=methods, seeds=1)
    assert [(cell.methods, cell.control_of) for cell in make_plan(config)] == [
        (("plain", "swa@lr*1"), ""),
        (("ema@lr*0.5", "lawa@lr*0.5"), ""),
        (("ema@lr*f",), "switch-ema"),
    ]


def test_methods_may_train_for_other_numbers_of_epochs():
    methods = ("plain", "ema@epochs*0.5", "lawa@epochs*0.5", "ema@epochs*f")
    config = CompareConfig(
        tasks=("digits",), methods=methods, seeds=1, epochs=10, warmup_epochs=2
    )
    cells = make_plan(config)
    lengths = [
        (c.methods, c.recipe.epochs, c.recipe.warmup_epochs, c.control_of)
        for c in cells
    ]
    assert lengths == [
        (("plain",), 10, 2, ""),
        (("ema@epochs*0.5", "lawa@epochs*0.5"), 5, 1, ""),
        (("ema@epochs*f",), 10, 2, "switch-ema"),  # until f is known
    ]
    short = cells[-1].lasting(4)
    assert (short.id, short.recipe.epochs) == (cells[-1].id, 4)
    assert short.recipe.warmup_epochs == pytest.approx(0.8)
