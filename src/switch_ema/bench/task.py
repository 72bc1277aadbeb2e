"""What a task is: data, model, optimizer, loss and metrics, in one readable file."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from switch_ema.averaging.averager import Averager
from switch_ema.averaging.view.teacher import Teacher
from switch_ema.bench.recipe import Metric, Recipe
from switch_ema.bench.stacking.modules import Stacked

__all__ = [
    "Batches",
    "Loader",
    "Metric",
    "PlaneTask",
    "Recipe",
    "SeedBatchTask",
    "SelfTeachingTask",
    "Task",
]

CONTROL_PURPOSE = 2**31
"""Purpose of the control's random numbers: see ``epoch_seed``."""
CONTROL_EPOCHS = 500_000
"""The control's epochs count from here, which gives it other orders of the data.

A task that does something at a certain epoch takes the remainder of this.
"""


def epoch_seed(seed: int, epoch: int, purpose: int = 0) -> int:
    """Return the seed of an epoch's random numbers, as the training loop sets it.

    Args:
        seed: the task's.
        epoch: counted from 0.
        purpose: a number for what they are used for: far apart, so that no epoch's
            seed is another's.
    """
    return (seed * 100_003 + epoch + 1 + purpose) % 2**32


class Loader(Protocol):
    """Batches of one epoch, whose number is known."""

    def __len__(self) -> int:
        """Return the number of batches."""

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches."""


class Task(ABC):
    """A training problem, made anew for each seed.

    The constructor takes the seed and, as keywords, the options that may be given
    behind the name (``images:dataset=cifar10,noise=0.3``). What it draws at random
    (subset, label noise) comes from the seed alone. The loop seeds random numbers
    before the constructor, ``model()``, each epoch and each ``evaluate``, so that every
    method sees the same data, initial weights, batches, augmentation and dropout.

    A task that can be tuned takes the keyword ``split``: with "validation" it
    evaluates on a part of the training data that it then does not train on.
    """

    metrics: tuple[Metric, ...]
    """What ``evaluate`` measures; the first one decides."""
    recipe: Recipe = Recipe()
    loss_in_training_only: ClassVar[bool] = False
    """Whether ``loss`` needs the model in training mode, as torchvision's detectors do.

    Analyses that ask for the loss of a model in evaluation mode then say that there is
    none.
    """

    undivided: ClassVar[str] = ""
    """Why several workers cannot train one model of it, in words after "because".

    Empty where ``loss`` is the mean over the examples of a batch, which lie along the
    first dimension of its tensors: then every worker takes its part of each batch.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    @classmethod
    def recipe_for(cls, options: Mapping[str, Any]) -> Recipe:
        """Return the recipe that suits the options given behind the name."""
        return cls.recipe

    @classmethod
    def seeds_at_once(cls, options: Mapping[str, Any]) -> int:
        """Return how many seeds are best trained at once, as one stacked model.

        More than 1 is a promise: ``loss`` depends on its arguments alone and only calls
        the model, batches are tensors (or tuples or dicts of them) of one shape for all
        seeds, and the number was measured to be fast. Networks with recurrent layers,
        and those whose steps are not mostly overhead, are better trained one by one.
        """
        return 1

    @classmethod
    def metrics_for(cls, options: Mapping[str, Any]) -> tuple[Metric, ...]:
        """Return the metrics that a task with these options measures.

        Where they depend on the options, the constructor has to set ``metrics``, too.
        """
        return cls.metrics

    @abstractmethod
    def model(self) -> nn.Module:
        """Make the network with fresh weights."""

    @abstractmethod
    def optimizer(self, model: nn.Module) -> Optimizer:
        """Make the optimizer with the task's usual settings."""

    @abstractmethod
    def train_loader(self, epoch: int) -> Loader:
        """Return the batches of an epoch, in an order that depends on the epoch."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the training loss of a batch."""

    def stacked_losses(self, stack: Stacked, batch: Any) -> Tensor:
        """Return the losses of many networks at once, for as many batches.

        Only for tasks whose seeds are trained at once; by default :meth:`loss` of each.
        """
        return stack.each(self.loss, batch)

    def stacked_values(
        self, stack: Stacked, tasks: Sequence["Task"]
    ) -> dict[str, list[float]] | None:
        """Measure every metric of many networks at once: one value for each task.

        None, as by default: each network is measured alone by :meth:`evaluate`.
        """
        return None

    @abstractmethod
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Measure every metric; the model is in evaluation mode, without gradients.

        Data that the task holds has to be moved to the model's device here.
        """

    def predictions(self, model: nn.Module) -> tuple[Tensor, Tensor] | None:
        """Return the outputs (logits) and labels of all that is evaluated.

        Only for tasks that classify: calibration is measured with them.
        """
        return None

    def initial_weights(self) -> tuple[Mapping[str, Tensor], str] | None:
        """Return weights to start from and a phrase that says where they come from.

        The weights are entries of the model's state dict, loaded into what ``model()``
        has made; entries that are left out keep their fresh values, so ``{}`` is
        training from scratch. Every method starts from them. The origin is printed
        with the results, for instance "from scratch" or "ImageNet weights from
        r50.pth". None: the origin is not worth a word.
        """
        return None

    def trivial(self) -> Mapping[str, float] | Mapping[str, Mapping[str, float]]:
        """Return what a trivial predictor reaches, printed beside the results.

        Either values by metric (``{"mse": 29.0}``) or several named predictors
        (``{"mean image": {"mse": 29.0}, "last frame": {"mse": 41.5}}``); metrics may be
        left out. It is called once for a task, with the first seed of the comparison.
        """
        return {}

    def samples(self, model: nn.Module) -> Tensor | Mapping[str, Tensor] | None:
        """Return pictures that a model makes, shown side by side for the methods.

        The pictures have the shape N x C x H x W with C = 1 or 3 and values in [0, 1];
        a dict gives several rows of pictures, each with its caption, such as "truth"
        and "prediction". It is called once for each method, at the end of the training
        of the first seed, in the way that ``evaluate`` is called: in evaluation mode,
        without gradients, inside ``averaged()``, and with the same random numbers for
        every method. None: there are no pictures.
        """
        return None


class SeedBatchTask(Task):
    """A task so small that all its seeds are trained at once, as one stacked model.

    The constructor takes the seeds. ``model()`` returns a module whose parameters have
    the seeds as first dimension, the loss is the sum over seeds of their own losses,
    and ``evaluate`` gives one value per seed. Optimizers and averaging methods work
    element by element, so each seed trains as it would alone.
    """

    undivided: ClassVar[str] = "it trains all seeds at once, as one stacked model"

    def __init__(self, seeds: tuple[int, ...]) -> None:
        super().__init__(seeds[0])
        self.seeds = seeds

    @abstractmethod
    def evaluate(self, model: nn.Module) -> dict[str, Any]:
        """Measure every metric: a list with one value per seed."""


class PlaneTask(SeedBatchTask):
    """A task of two classes of points in the plane, whose boundaries can be drawn.

    The constructor sets the points and their classes, each with the seeds as first
    dimension.
    """

    x: Tensor
    """Labelled points, (seeds, points, 2)."""
    y: Tensor
    """Their classes, (seeds, points)."""
    x_eval: Tensor
    """Points to evaluate on, (seeds, points, 2)."""
    y_eval: Tensor


class SelfTeachingTask(Task):
    """A task whose targets come from the averaged model, as in MoCo and BYOL.

    The average decides the training, so every method trains alone. The loop gives the
    averager to ``teach``; ``loss`` asks ``self.teacher(model)`` for the targets. A
    method's decay rises along a cosine to ``final_decay`` over the training.
    """

    undivided: ClassVar[str] = "the average of its weights makes the targets of a batch"
    final_decay: ClassVar[float] = 1.0
    memory: ClassVar[tuple[str, ...]] = ()
    """Names of what ``loss`` writes into the model, such as a queue of old targets.

    It is saved with the model, never averaged, and refuses optimizers that ask for the
    loss of a batch twice.
    """
    averager: Averager | None = None

    def teach(self, averager: Averager | None) -> None:
        """Let an average teach; without one the student teaches itself."""
        self.averager = averager

    def teacher(self, model: nn.Module) -> Teacher:
        """Return the teacher that makes the targets for a student."""
        averager = self.averager
        return Teacher(model, averager.averaged_tensors) if averager else Teacher(model)


class Batches:
    """Shuffled mini-batches of tensors in memory, faster than a DataLoader for them.

    Args:
        tensors: Inputs, labels and so on, with the same number of examples.
        size: Examples per batch.
        seed: Decides, with the epoch, about the order.
        epoch: The epoch, counted from 0.
        drop_last: Leave out a last batch that is not full: batch normalisation cannot
            work with one example, and is noisier with few. A size above the number of
            examples then means one batch of all of them.
    """

    def __init__(
        self,
        tensors: tuple[Tensor, ...],
        size: int,
        seed: int,
        *,
        epoch: int,
        drop_last: bool = False,
    ) -> None:
        count = len(tensors[0])
        self.tensors, self.size = tensors, min(size, count) if drop_last else size
        generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
        order = torch.randperm(count, generator=generator)
        self.order = order[: count // self.size * self.size] if drop_last else order

    def __len__(self) -> int:
        return -(-len(self.order) // self.size)

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        for indices in torch.split(self.order, self.size):
            yield tuple(tensor[indices] for tensor in self.tensors)
