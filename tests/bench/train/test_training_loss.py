"""The training loss of final weights, measured alike for every method."""

import math

import pytest
import torch
from torch import nn

from switch_ema.bench.compare import run_comparison
from switch_ema.bench.execute.options import RunOptions
from switch_ema.bench.plan.cells import make_plan
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.recipe import TRAINING_LOSS
from switch_ema.bench.task import Metric
from switch_ema.bench.train.context import RunContext
from switch_ema.bench.train.evaluation import showing
from switch_ema.bench.train.loop import Training
from switch_ema.bench.train.training_loss import has_training_loss, training_losses

METHODS = ("plain", "ema:decay=0.9", "switch-ema:decay=0.9")


def trained(task, folder, methods=METHODS, **settings):
    given = {"seeds": 1, "epochs": 2, **settings}
    config = CompareConfig(tasks=(task,), methods=methods, **given)
    training = Training(make_plan(config)[0], RunContext(folder, "cpu"))
    return training, training.run()


def test_it_is_the_loss_of_the_weights_that_a_method_returns(tiny, tmp_path):
    training, result = trained(tiny, tmp_path)
    loader = list(training.task.train_loader(0))
    for label in METHODS[:2]:
        with showing(training, label, 0), torch.no_grad():
            losses = [training.task.loss(training.model, batch) for batch in loader]
        (found,) = result.training_losses[label]
        assert found == pytest.approx(float(torch.stack(losses).mean()), rel=1e-6)
    assert list(result.values["plain"]) == ["error", "slope"]


def test_the_summary_has_it_although_it_is_no_metric_of_the_task(tiny, tmp_path):
    config = CompareConfig(tasks=(tiny,), methods=METHODS, seeds=2, epochs=1)
    options = RunOptions(out=tmp_path, executor="inline", device="cpu")
    run = run_comparison(config, options)
    (task,) = run.summary.tasks
    assert [metric.name for metric in task.metrics] == ["error", "slope"]
    assert {m: list(own) for m, own in task.training_losses.items()} == {
        method: [0, 1] for method in METHODS
    }
    values = [v for own in task.training_losses.values() for v in own.values()]
    # After one epoch Switch EMA has not continued from its average yet.
    assert len(set(values)) == 4 and all(map(math.isfinite, values))


def test_each_network_of_a_stack_has_its_own(tmp_path):
    alone = [
        trained("digits", tmp_path / str(seed), seeds=1, epochs=1, first_seed=seed)[1]
        for seed in (0, 1)
    ]
    _, stacked = trained("digits", tmp_path / "stack", seeds=4, epochs=1, stack="auto")
    own = [result.training_losses["plain"][0] for result in alone]
    assert stacked.training_losses["plain"][:2] == pytest.approx(own, rel=1e-3)


def test_a_task_that_measures_it_is_left_alone(tiny, tmp_path):
    training, _ = trained(tiny, tmp_path)
    own = Metric(name=TRAINING_LOSS, higher_is_better=False)
    training.task.metrics = (*training.task.metrics, own)
    assert not has_training_loss(training.task)


def test_weights_of_a_chosen_epoch_have_none(tmp_path):
    methods = ("plain", "ema+best")
    _, result = trained("digits", tmp_path, methods=methods, epochs=1)
    assert list(result.training_losses) == ["plain"]


def test_a_loss_in_training_mode_leaves_the_statistics_alone(tiny, tmp_path):
    training, _ = trained(tiny, tmp_path)

    class OnlyInTraining(type(training.task)):
        loss_in_training_only = True

        def loss(self, model, batch):
            assert model.training
            return super().loss(model, batch)

    training.task.__class__ = OnlyInTraining
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1)).eval()
    before = model[0].running_mean.clone()
    (loss,) = training_losses(training.task, model, training.accelerator)
    assert math.isfinite(loss) and not model.training
    assert torch.equal(model[0].running_mean, before)
