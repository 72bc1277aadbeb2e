"""Trains several seeds of an ordinary task as one stacked model."""

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy
import torch
from accelerate.utils import set_seed
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import default_collate

from switch_ema.averaging.averager import Averager
from switch_ema.averaging.model.names import unwrap
from switch_ema.bench.stacking.modules import Stacked
from switch_ema.bench.task import (
    CONTROL_EPOCHS,
    CONTROL_PURPOSE,
    Batches,
    Loader,
    SeedBatchTask,
    Task,
    epoch_seed,
)


class StackedTask(SeedBatchTask):
    """Trains the seeds of a task as one model, each as if it trained alone.

    Each seed has the data, batch order and initial weights of a training alone; only
    dropout draws different numbers. A seed whose loss is no longer finite stops: its
    weights become zero and its values NaN, while the others continue.
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        super().__init__(tuple(task.seed for task in tasks))
        self.tasks = list(tasks)
        for task in tasks:
            task.broken = self.broken
        self.metrics = tasks[0].metrics
        self.has_stopped = torch.zeros(len(tasks), dtype=torch.bool)

    def trivial(self) -> Mapping[str, Any]:
        """Return the scores of the first seed's trivial predictors."""
        return self.tasks[0].trivial()

    def samples(self, model: nn.Module) -> Any:
        """Return the sample images of the first seed."""
        return self.tasks[0].samples(cast(Stacked, unwrap(model)).alone(0))

    def model(self) -> nn.Module:
        """Stack one network per seed, each created with its own seed."""
        networks = []
        for task in self.tasks:
            set_seed(task.seed)
            networks.append(task.model())
        return Stacked(networks)

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Create the task's optimizer for the stack."""
        return cast(Stacked, model).make_optimizer(self.tasks[0].optimizer)

    def train_loader(self, epoch: int) -> Loader:
        """Stack the batches of all seeds."""
        loaders = [task.train_loader(epoch) for task in self.tasks]
        in_memory = [loader for loader in loaders if type(loader) is Batches]
        if len(in_memory) == len(loaders):
            return GatheredBatches(in_memory)
        purpose = CONTROL_PURPOSE if epoch >= CONTROL_EPOCHS else 0
        number = epoch % CONTROL_EPOCHS
        return StackedBatches(
            loaders, [epoch_seed(task.seed, number, purpose) for task in self.tasks]
        )

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Sum the seeds' losses, so each seed gets the gradient of its own loss."""
        stack = cast(Stacked, unwrap(model))
        losses = self.tasks[0].stacked_losses(stack, batch)
        finite = losses.detach().isfinite()
        self.has_stopped |= ~finite.cpu()
        # A mean would divide every gradient by the number of seeds. A diverged seed
        # counts 0: its NaN would make the loss of the whole stack NaN.
        return losses.where(finite, 0.0).sum()

    def evaluate(self, model: nn.Module) -> dict[str, Any]:
        """Measure every metric of each seed, at once if the task supports it."""
        stack = cast(Stacked, unwrap(model))
        nothing = {metric.name: math.nan for metric in self.metrics}
        measured = self.tasks[0].stacked_values(stack, self.tasks)
        found = [
            nothing
            if self.has_stopped[i]
            else dict(task.evaluate(stack.alone(i)))
            if measured is None
            else {name: values[i] for name, values in measured.items()}
            for i, task in enumerate(self.tasks)
        ]
        return {name: [values[name] for values in found] for name in nothing}

    @torch.no_grad()
    def clear_stopped(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        averagers: Iterable[Averager | None],
    ) -> None:
        """Zero the weights, gradients, optimizer state and averages of stopped seeds.

        Called before each optimizer step while any seed has stopped, so that no
        NaN reaches a sum or a check over the whole stack.
        """
        stopped = self.has_stopped
        parameters = list(model.parameters())
        for parameter in parameters:
            parameter[stopped] = 0
            if parameter.grad is not None:
                parameter.grad[stopped] = 0
            for value in optimizer.state.get(parameter, {}).values():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    value[stopped] = 0
        for averager in averagers:
            if averager is not None:
                with averager.averaged():
                    for parameter in parameters:
                        parameter[stopped] = 0

    def watch_weights(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Stop seeds right after a step that made their weights infinite or NaN.

        Call it before averagers are attached. Methods that write their average into the
        model during a step refuse one that is not finite, which would fail the step of
        all seeds.
        """
        parameters = list(model.parameters())

        @torch.no_grad()
        def after_step(*_: Any) -> None:
            # One sum over everything is cheap; seeds are looked at only if it is bad.
            total = torch.stack([parameter.sum() for parameter in parameters]).sum()
            if not total.isfinite():
                self.note_unusable(model)
                for parameter in parameters:
                    parameter[self.has_stopped] = 0

        optimizer.register_step_post_hook(after_step)

    def note_unusable(self, model: nn.Module) -> None:
        """Mark seeds whose weights are no longer finite as stopped."""
        for parameter in model.parameters():
            finite = parameter.detach().flatten(1).isfinite().all(1)
            self.has_stopped |= ~finite.cpu()


def stack_tasks(make: Callable[[int], Task], seeds: Sequence[int]) -> StackedTask:
    """Create one task per seed, each with the random numbers it would have alone."""
    tasks = []
    for seed in seeds:
        set_seed(seed)
        tasks.append(make(seed))
    return StackedTask(tasks)


class StackedBatches:
    """Stacked batches of several seeds.

    Augmentations may draw from the global random state, so each seed's batches are made
    with a state of its own, that of a training alone without dropout.
    """

    def __init__(self, loaders: Sequence[Loader], seeds: Sequence[int]) -> None:
        self._loaders, self._seeds = loaders, seeds

    def __len__(self) -> int:
        return len(self._loaders[0])

    def __iter__(self) -> Iterator[Any]:
        streams = [
            _with_own_randomness(loader, seed)
            for loader, seed in zip(self._loaders, self._seeds, strict=True)
        ]
        for batches in zip(*streams, strict=True):
            yield default_collate(list(batches))


def _with_own_randomness(loader: Loader, seed: int) -> Iterator[Any]:
    """Yield a loader's batches, drawn with a separate random state."""
    common = _random_state()
    set_seed(seed)
    own = _random_state()
    _set_random_state(common)
    batches = iter(loader)
    while True:
        common = _random_state()
        _set_random_state(own)
        try:
            batch = next(batches)
        except StopIteration:
            return
        finally:
            own = _random_state()
            _set_random_state(common)
        yield batch


def _random_state() -> tuple[Any, Any, Tensor]:
    return random.getstate(), numpy.random.get_state(), torch.get_rng_state()


def _set_random_state(state: tuple[Any, Any, Tensor]) -> None:
    random.setstate(state[0])
    numpy.random.set_state(state[1])
    torch.set_rng_state(state[2])


class GatheredBatches:
    """Stacked batches of data in memory, gathered for all seeds in one operation."""

    def __init__(self, loaders: Sequence[Batches]) -> None:
        held = zip(*(loader.tensors for loader in loaders), strict=True)
        self._columns = tuple(torch.stack(column) for column in held)
        self._orders = torch.stack([loader.order for loader in loaders])
        self._size = loaders[0].size

    def __len__(self) -> int:
        return -(-self._orders.shape[1] // self._size)

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        seeds = torch.arange(len(self._orders)).unsqueeze(1)
        for chosen in torch.split(self._orders, self._size, dim=1):
            yield tuple(column[seeds, chosen] for column in self._columns)
