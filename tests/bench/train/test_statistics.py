"""SWA with a budget: a longer training, five sets of weights, fresh statistics."""

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from switch_ema import SWA
from switch_ema.bench.plan.cells import make_plan
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.stacking.tasks import StackedTask
from switch_ema.bench.task import Batches, Metric, SelfTeachingTask, Task
from switch_ema.bench.train.context import RunContext
from switch_ema.bench.train.loop import Training, train_cell
from switch_ema.bench.train.statistics import recompute_statistics

BUDGET = "swa:budget=1.25"


class Points(Task):
    """A batch norm on the inputs: its statistics do not depend on the weights."""

    metrics = (Metric(name="loss", higher_is_better=False),)

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        generator = torch.Generator().manual_seed(seed)
        self.x = seed + torch.randn(12, 2, generator=generator)

    def model(self) -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1))

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def train_loader(self, epoch):
        return Batches((self.x, self.x[:, :1]), 4, self.seed, epoch=epoch)

    def loss(self, model, batch):
        x, y = batch
        return mse_loss(model(x), y)

    def evaluate(self, model):
        return {"loss": 0.0}

    def expected(self, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The mean over the batches of their means and unbiased variances."""
        batches = [batch[0] for batch in self.train_loader(epoch)]
        means, variances = (
            torch.stack([measure(x, dim=0) for x in batches]).mean(0)
            for measure in (torch.mean, torch.var)
        )
        return means, variances


class Taught(Points, SelfTeachingTask):
    """Its loss must not run: it would fill a queue."""

    def train_loader(self, epoch):
        return Batches((self.x,), 4, self.seed, epoch=epoch)

    def loss(self, model, batch):
        raise AssertionError


@pytest.mark.parametrize("kind", [Points, Taught])
def test_statistics_are_the_mean_over_the_batches_of_an_epoch(kind):
    task = kind(3)
    model = task.model()
    average = SWA(model)
    average.end_epoch()
    live = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    recompute_statistics(task, average, epoch=5, device=torch.device("cpu"))
    mean, variance = task.expected(5)
    found = average.averaged_state_dict()
    torch.testing.assert_close(found["0.running_mean"], mean)
    torch.testing.assert_close(found["0.running_var"], variance)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, live[name])


def test_each_network_of_a_stack_has_the_statistics_of_its_own_batches():
    task = StackedTask([Points(1), Points(7)])
    stack = task.model()
    average = SWA(stack)
    average.end_epoch()
    recompute_statistics(task, average, epoch=2, device=torch.device("cpu"))
    for index, own in enumerate(task.tasks):
        found = stack.state_of(average.averaged_state_dict(), index)
        mean, variance = own.expected(2)
        torch.testing.assert_close(found["0.running_mean"], mean)
        torch.testing.assert_close(found["0.running_var"], variance)


def cells_of(**more):
    settings = {"tasks": ("digits:size=80",), "epochs": 8, "seeds": 1, "first_seed": 4}
    config = CompareConfig(
        methods=("plain", "ema", BUDGET), schedule="cosine", **{**settings, **more}
    )
    return make_plan(config)


def test_a_budget_lengthens_the_training_of_its_method_only():
    shared, longer = cells_of()
    assert shared.methods == ("plain", "ema")
    assert (shared.recipe.epochs, shared.recipe.extra_epochs) == (8, 0)
    assert longer.methods == (BUDGET,)
    assert (longer.recipe.epochs, longer.recipe.extra_epochs) == (10, 2)


def test_five_sets_of_weights_are_averaged_at_half_the_rate(tmp_path):
    context = RunContext(tmp_path, "cpu")
    shared, longer = cells_of()
    plain = train_cell(shared, context).values["plain"]["nll"]
    training = Training(longer, context)
    steps, rates = training.steps_per_epoch, []
    training.optimizer.register_step_pre_hook(
        lambda optimizer, *_: rates.append(optimizer.param_groups[0]["lr"])
    )
    found = training.run().values[BUDGET]["nll"]
    # Before the first set the live weights are shown: those of plain training.
    assert found[:8] == plain
    assert len(found) == 10
    assert training.averagers[BUDGET].averaged_models == 5
    assert rates[8 * steps - 1] < 0.001 < rates[0]
    assert rates[8 * steps :] == [0.5 * rates[0]] * (2 * steps)


@pytest.mark.zoo
def test_a_stack_with_batch_norm_has_the_values_of_trainings_alone(tmp_path):
    """Rounding grows over the steps; other statistics would change the first digit."""
    task = "classification:network=resnet18,size=50,test_size=20,augment=False"
    values = {}
    for stack in ("auto", "off"):
        cells = cells_of(tasks=(task,), epochs=2, seeds=4, stack=stack)
        last = [c for c in cells if c.methods == (BUDGET,)]
        found = [train_cell(c, RunContext(tmp_path, "cpu")).values for c in last]
        values[stack] = [v for own in found for v in own[BUDGET]["nll"][-1]]
    assert values["auto"] == pytest.approx(values["off"], rel=1e-2)
