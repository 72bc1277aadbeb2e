"""Seeds trained at once train as they would alone."""

import math

import pytest
import torch
from accelerate.utils import set_seed
from scipy.stats import ks_2samp, ttest_rel
from torch import nn

from switch_ema import EMA
from switch_ema.bench.loading import create_task, load_task_class
from switch_ema.bench.stacking.modules import Stacked, clip_each_
from switch_ema.bench.stacking.tasks import (
    GatheredBatches,
    StackedBatches,
    StackedTask,
    stack_tasks,
)
from switch_ema.bench.task import Batches, Metric, Task, epoch_seed

TASKS = (
    "noisy-digits:size=200",
    "mnist1d:size=200,batch=20",
    "mnist1d:network=mlp,size=200,batch=20",
    "mnist1d:network=transformer,size=200,batch=20",
)
ALL = (
    *TASKS,
    "rotation:size=100,batch=10",
    "images:size=100,batch=10,augment=True",
    "images:network=mlp,size=100,batch=10",
    pytest.param(
        "classification:network=resnet18,size=100,batch=25", marks=pytest.mark.zoo
    ),
    pytest.param("classification:network=deit-t,size=100", marks=pytest.mark.zoo),
)
STEPS = 50


def train_alone(task: Task, epochs: int) -> nn.Module:
    set_seed(task.seed)
    model = task.model()
    optimizer = task.optimizer(model)
    for epoch in range(epochs):
        for batch in task.train_loader(epoch):
            optimizer.zero_grad()
            task.loss(model, batch).backward()
            optimizer.step()
    return model.eval()


def train_stacked(task: StackedTask, epochs: int, clip: float | None = None) -> Stacked:
    model = task.model()
    optimizer = task.optimizer(model)
    for epoch in range(epochs):
        for batch in task.train_loader(epoch):
            optimizer.zero_grad()
            task.loss(model, batch).backward()
            if clip is not None:
                clip_each_(model.parameters(), clip)
            optimizer.step()
    model.eval()
    assert isinstance(model, Stacked)
    return model


def losses(task: Task, loss_of) -> torch.Tensor:
    """Train for some steps in double precision and return the losses."""
    found: list[torch.Tensor] = []
    set_seed(task.seed)
    model = task.model().double()
    optimizer, epoch = task.optimizer(model), 0
    while len(found) < STEPS:
        set_seed(epoch_seed(task.seed, epoch))
        for batch in task.train_loader(epoch):
            doubled = [x.double() if x.is_floating_point() else x for x in batch]
            optimizer.zero_grad()
            found.append(loss_of(model, doubled))
            found[-1].sum().backward()
            optimizer.step()
        epoch += 1
    return torch.stack(found[:STEPS]).detach()


@pytest.mark.parametrize("name", ALL)
def test_each_seed_agrees_with_training_alone(name):
    # In double precision: in float32 Adam divides rounding errors of gradients that
    # should be zero by their own size, and losses differ after some dozens of steps.
    seeds = (0, 3)
    assert create_task(name, (0, 1)), "it is one of those that are stacked"
    task = stack_tasks(lambda seed: create_task(name, (seed,)), seeds)
    stacked = losses(task, task.tasks[0].stacked_losses)
    for index, seed in enumerate(seeds):
        set_seed(seed)
        alone = create_task(name, (seed,))
        expected = losses(alone, alone.loss)
        assert not torch.equal(expected[0], expected[-1])
        torch.testing.assert_close(stacked[:, index], expected, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("name", TASKS[:3])
def test_outputs_after_training_are_nearly_those_of_training_alone(name):
    seeds = (0, 3, 4)
    task = StackedTask([create_task(name, (seed,)) for seed in seeds])
    stacked = train_stacked(task, 4)
    for index, seed in enumerate(seeds):
        alone = train_alone(create_task(name, (seed,)), 4)
        # Outputs, for where a weight has no influence Adam follows rounding errors.
        found, _ = task.tasks[index].predictions(stacked.alone(index))
        expected, _ = task.tasks[index].predictions(alone)
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "name", ["images:dataset=cifar10", "rotation:network=resnet18", "lm"]
)
def test_what_is_not_faster_is_trained_one_by_one(name):
    task_class, spec = load_task_class(name)
    assert task_class.seeds_at_once(spec.options) == 1


class WithNormalisation(Task):
    """Batch norm, whose statistics are buffers, and a batch that is a dict."""

    metrics = (Metric(name="error", higher_is_better=False),)

    def __init__(self, seed, *, fails_at=None):
        super().__init__(seed)
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(24, 3, generator=generator)
        self.y = self.x.sum(1, keepdim=True)
        if fails_at is not None:
            self.y[fails_at] = math.inf

    def model(self):
        return nn.Sequential(
            nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4), nn.Linear(4, 1)
        )

    def optimizer(self, model):
        decayed = [p for p in model.parameters() if p.ndim > 1]
        others = [p for p in model.parameters() if p.ndim <= 1]
        groups = [{"params": decayed}, {"params": others, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=0.05, weight_decay=0.1)

    def train_loader(self, epoch):
        pairs = Batches((self.x, self.y), 8, self.seed, epoch=epoch)
        return [{"x": x, "y": y} for x, y in pairs]

    def loss(self, model, batch):
        return nn.functional.mse_loss(model(batch["x"]), batch["y"])

    def evaluate(self, model):
        return {"error": nn.functional.mse_loss(model(self.x), self.y).item()}


def test_statistics_groups_and_values_are_those_of_training_alone():
    tasks = [WithNormalisation(seed) for seed in (1, 2)]
    stacked = train_stacked(StackedTask(tasks), 5)
    values = StackedTask(tasks).evaluate(stacked)["error"]
    for index, task in enumerate(tasks):
        alone = train_alone(task, 5)
        own = stacked.state_of(stacked.state_dict(), index)
        for key, value in alone.state_dict().items():
            torch.testing.assert_close(own[key], value, atol=1e-5, rtol=1e-4)
        assert values[index] == pytest.approx(task.evaluate(alone)["error"], rel=1e-3)


class WithDropout(WithNormalisation):
    """Dropout, which draws other random numbers in a stack than alone."""

    def model(self):
        return nn.Sequential(nn.Linear(3, 16), nn.Dropout(0.5), nn.Linear(16, 1))


def test_final_values_of_64_seeds_are_distributed_as_those_of_trainings_alone():
    tasks = [WithDropout(seed) for seed in range(64)]
    stacked = StackedTask(tasks)
    found = stacked.evaluate(train_stacked(stacked, 5))["error"]
    alone = [task.evaluate(train_alone(task, 5))["error"] for task in tasks]
    assert len({round(value, 6) for value in (*found, *alone)}) == 128  # other numbers
    assert ks_2samp(found, alone).pvalue > 0.05
    assert ttest_rel(found, alone).pvalue > 0.05


@pytest.mark.parametrize("name", [TASKS[0], "images:network=mlp,size=100"])
def test_all_seeds_are_evaluated_at_once_as_they_would_be_alone(name):
    task = stack_tasks(lambda seed: create_task(name, (seed,)), (0, 3, 4))
    model = task.model().eval()
    task.has_stopped[1] = True
    assert task.tasks[0].stacked_values(model, task.tasks) is not None
    with torch.no_grad():
        found = task.evaluate(model)
        for index in (0, 2):
            own = task.tasks[index].evaluate(model.alone(index))
            for metric, value in own.items():
                assert found[metric][index] == pytest.approx(value, rel=1e-5)
    assert all(math.isnan(values[1]) for values in found.values())


def test_gradients_are_clipped_seed_by_seed():
    weights = nn.Parameter(torch.zeros(2, 3))
    biases = nn.Parameter(torch.zeros(2, 1))
    weights.grad = torch.tensor([[3.0, 0.0, 0.0], [0.3, 0.0, 0.0]])
    biases.grad = torch.tensor([[4.0], [0.4]])
    clip_each_([weights, biases], 1.0)
    torch.testing.assert_close(weights.grad[:, 0], torch.tensor([0.6, 0.3]))
    torch.testing.assert_close(biases.grad[:, 0], torch.tensor([0.8, 0.4]))


def test_a_seed_that_diverges_stops_and_the_others_go_on():
    task = StackedTask([WithNormalisation(1), WithNormalisation(2, fails_at=5)])
    model = task.model()
    optimizer = task.optimizer(model)
    average = EMA(model, decay=0.9)
    for batch in task.train_loader(0):
        optimizer.zero_grad()
        task.loss(model, batch).backward()
        if task.has_stopped.any():
            task.clear_stopped(model, optimizer, [average])
        optimizer.step()
        average.update()
    assert task.has_stopped.tolist() == [False, True]
    model.eval()
    with average.averaged():
        assert all(p.isfinite().all() for p in model.parameters())
        values = task.evaluate(model)["error"]
    assert math.isfinite(values[0]) and math.isnan(values[1])
    alone = train_alone(WithNormalisation(1), 1)
    own = model.state_of(model.state_dict(), 0)
    for key, value in alone.state_dict().items():
        torch.testing.assert_close(own[key], value, atol=1e-5, rtol=1e-4)


def test_batches_in_memory_are_gathered_as_they_would_be_stacked():
    task = StackedTask([create_task(TASKS[0], (seed,)) for seed in (0, 5)])
    for epoch in (0, 1):
        loaders = [own.train_loader(epoch) for own in task.tasks]
        expected = list(StackedBatches(loaders, [0, 5]))
        found = task.train_loader(epoch)
        assert isinstance(found, GatheredBatches) and len(found) == len(expected)
        for own, other in zip(found, expected, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(own, other, strict=True))


@pytest.mark.parametrize("channels", [1, 9])
@pytest.mark.parametrize("options", [{}, {"stride": 2, "padding": 1}, {"bias": False}])
def test_stacked_convolutions_are_those_of_single_networks(channels, options):
    networks = [nn.Conv1d(channels, 4, 3, **options) for _ in range(2)]
    x = torch.randn(2, 5, channels, 10)
    found = Stacked(networks).each(lambda network, own: network(own), x)
    for own, network, result in zip(x, networks, found, strict=True):
        torch.testing.assert_close(result, network(own), atol=1e-5, rtol=1e-5)
