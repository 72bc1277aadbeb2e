"""An equal budget: as many forward-backward passes, however many a step takes."""

import dataclasses

import pytest

from switch_ema.bench.compare import run_comparison
from switch_ema.bench.errors import UsageError
from switch_ema.bench.execute.options import RunOptions
from switch_ema.bench.plan.cells import make_plan
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.recipe import Recipe
from switch_ema.bench.train import loop
from switch_ema.paper import TABLES
from switch_ema.paper.reproduce.presets import RowSettings, row_config


@pytest.mark.parametrize("optimizer", ["sgd:lr=0.01", "sam:lr=0.01", "sasam:lr=0.01"])
def test_every_optimizer_takes_the_same_number_of_passes(
    tiny, tmp_path, monkeypatch, optimizer
):
    passes = 0
    original = loop.Training._back_propagate

    def counted(*arguments, **more):
        nonlocal passes
        passes += 1
        return original(*arguments, **more)

    monkeypatch.setattr(loop.Training, "_back_propagate", counted)
    config = CompareConfig(
        tasks=(tiny,),
        methods=("plain",),
        seeds=1,
        epochs=6,
        optimizer=optimizer,
        equal_budget=True,
    )
    options = RunOptions(out=tmp_path, device="cpu", executor="inline")
    (task,) = run_comparison(config, options).summary.tasks
    assert passes == 6 * 4  # epochs of four batches
    is_two_pass = not optimizer.startswith("sgd")
    assert task.epochs == (3 if is_two_pass else 6)
    told = "equal, in forward-backward passes"
    more = ": 2 per step, so 1/2 of the epochs" if is_two_pass else ""
    assert task.facts["Budget"] == told + more


def test_the_warmup_keeps_its_share_and_one_epoch_is_the_least():
    config = CompareConfig(optimizer="sam", equal_budget=True)
    found = config.recipe_for(Recipe(epochs=20, warmup_epochs=4))
    assert (found.epochs, found.warmup_epochs) == (10, 2)
    given = dataclasses.replace(config, epochs=6, warmup_epochs=3)
    found = given.recipe_for(Recipe(epochs=20, warmup_epochs=4))
    assert (found.epochs, found.warmup_epochs) == (3, 1.5)
    assert config.recipe_for(Recipe(epochs=1)).epochs == 1


@pytest.mark.parametrize(
    ("epochs", "length", "extra"), [(10, 10, 2), (200, 200, 40), (7, 6, 1), (1, 2, 1)]
)
def test_swa_with_a_budget_gets_no_more_epochs_than_the_others(epochs, length, extra):
    config = CompareConfig(
        tasks=("digits",),
        methods=("plain", "swa:budget=1.25"),
        seeds=1,
        epochs=epochs,
        warmup_epochs=epochs / 2,
        equal_budget=True,
    )
    plain, swa = (cell.recipe for cell in make_plan(config))
    assert (plain.epochs, plain.extra_epochs) == (epochs, 0)
    assert (swa.epochs, swa.extra_epochs) == (length, extra)
    assert swa.warmup_epochs == pytest.approx(swa.scheduled_epochs / 2)


def test_without_it_everything_keeps_its_name():
    config = CompareConfig(tasks=("digits",), optimizer="sam")
    assert "equal_budget" not in config.to_json()
    equal = dataclasses.replace(config, equal_budget=True)
    assert equal.default_name != config.default_name
    assert {c.id for c in make_plan(equal)}.isdisjoint(c.id for c in make_plan(config))


def test_a_script_counts_for_itself():
    with pytest.raises(UsageError, match="equal_budget does not apply to a script"):
        CompareConfig(tasks=("script:python train.py {seed}",), equal_budget=True)


def test_rows_of_the_paper_with_sam_get_half_the_epochs():
    settings = RowSettings(equal_budget=True)
    length = {
        row.name: {cell.recipe.epochs for cell in make_plan(row_config(row, settings))}
        for row in TABLES["table-1"].rows
        if row.name in ("digits-sgd", "digits-sam")
    }
    ((half,), (whole,)) = length["digits-sam"], length["digits-sgd"]
    assert 2 * half == whole
