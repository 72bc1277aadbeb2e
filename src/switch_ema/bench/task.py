"""The interface of a task: data, model, optimizer, loss and metrics."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.optim import Optimizer

from switch_ema.averaging.averager import Averager
from switch_ema.averaging.view.teacher import Teacher
from switch_ema.bench.broken_files import BrokenFiles
from switch_ema.bench.loaders import Batches, Loader
from switch_ema.bench.recipe import Metric, Recipe
from switch_ema.bench.sharding import Shard
from switch_ema.bench.stacking.modules import Stacked

__all__ = [
    "Batches",
    "JointLossTask",
    "Loader",
    "Metric",
    "PlaneTask",
    "Recipe",
    "SeedBatchTask",
    "SelfTeachingTask",
    "Shard",
    "Task",
]

CONTROL_PURPOSE = 2**31
"""Purpose of the control's random numbers: see ``epoch_seed``."""
EVALUATION_PURPOSE = 2**30
"""Purpose of the random numbers of an evaluation."""
CONTROL_EPOCHS = 500_000
"""Offset of the control's epoch numbers, which gives it different data orders.

A task that acts at a certain epoch must use the epoch modulo this number.
"""


def epoch_seed(seed: int, epoch: int, purpose: int = 0) -> int:
    """Return the seed that the training loop sets for an epoch.

    Args:
        seed: seed of the task.
        epoch: epoch, counted from 0.
        purpose: offset for the use of the random numbers; offsets are far apart, so
            that seeds of different purposes do not overlap.
    """
    return (seed * 100_003 + epoch + 1 + purpose) % 2**32


class Task(ABC):
    """A training problem; each seed gets a new instance.

    The constructor takes the seed and, as keywords, the options that users write after
    the name (``images:dataset=cifar10,noise=0.3``). Random choices in it (subset, label
    noise) depend only on the seed. The loop seeds random numbers before the
    constructor, ``model()``, each epoch and each ``evaluate``, so every method sees the
    same data, initial weights, batches, augmentation and dropout.

    A tunable task takes the keyword ``split``: with "validation" it holds out part of
    the training data and evaluates on it.
    """

    metrics: tuple[Metric, ...]
    """Metrics that ``evaluate`` returns; the first one decides."""
    recipe: Recipe = Recipe()
    loss_in_training_only: ClassVar[bool] = False
    """Whether ``loss`` needs the model in training mode, as torchvision's detectors do.

    Analyses that need the loss in evaluation mode report that it is unavailable.
    """

    undivided: ClassVar[str] = ""
    """Why data-parallel training is impossible, as a clause after "because".

    Empty if ``loss`` is the mean over the examples of a batch and examples are along
    the first dimension of its tensors: then each worker takes its part of each batch.
    Otherwise ``loss`` exchanges with the other workers: see ``shares_loss``.
    """
    shares_loss: ClassVar[bool] = False
    """Whether ``loss`` exchanges with the other workers through ``shard``.

    The mean of the workers' losses, weighted by their numbers of examples, must be the
    loss of the whole batch. Without an exchange, this is tested before the training.
    """
    uses_all_parameters: ClassVar[bool] = False
    """Whether every loss depends on all parameters that require a gradient.

    Then data-parallel workers need not search for unused parameters in each step.
    """

    divides_evaluation: ClassVar[bool] = False
    """Whether workers evaluate their parts and exchange them through ``shard``.

    Then all of them call ``evaluate`` and ``predictions`` and return the same values;
    otherwise the first one evaluates alone.
    """
    shard: Shard = Shard()
    """This process's part of the data; all of it unless several workers train.

    The loop sets it before it calls any method.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.broken = BrokenFiles()
        """Files of the data that cannot be read; the loop says how many may be."""

    @classmethod
    def recipe_for(cls, options: Mapping[str, Any]) -> Recipe:
        """Return the recipe for a task with these options."""
        return cls.recipe

    @classmethod
    def seeds_at_once(cls, options: Mapping[str, Any]) -> int:
        """Return the best number of seeds to train as one stacked model.

        More than 1 is a promise: ``loss`` depends only on its arguments and only calls
        the model, batches are tensors (or tuples or dicts of tensors) with the same
        shapes for all seeds, and the number was measured to be fast. Recurrent
        networks, and those whose steps are not mostly overhead, train faster alone.
        """
        return 1

    @classmethod
    def reading_processes(cls, options: Mapping[str, Any]) -> int:
        """Return how many processes read the data, if there are cores for them.

        Slurm and Ray reserve as many cores. By default the option ``workers``.
        """
        return int(options.get("workers") or 0)

    @classmethod
    def metrics_for(cls, options: Mapping[str, Any]) -> tuple[Metric, ...]:
        """Return the metrics of a task with these options.

        If they depend on the options, the constructor must set ``metrics`` as well.
        """
        return cls.metrics

    @abstractmethod
    def model(self) -> nn.Module:
        """Create the network with fresh weights."""

    @abstractmethod
    def optimizer(self, model: nn.Module) -> Optimizer:
        """Create the optimizer with the task's default settings."""

    @abstractmethod
    def train_loader(self, epoch: int) -> Loader:
        """Return the batches of an epoch, shuffled differently in each epoch."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the training loss of a batch."""

    def stacked_losses(self, stack: Stacked, batch: Any) -> Tensor:
        """Return the losses of many networks at once, each for its own batch.

        Only for tasks whose seeds are stacked; by default :meth:`loss` of each.
        """
        return stack.each(self.loss, batch)

    def stacked_values(
        self, stack: Stacked, tasks: Sequence["Task"]
    ) -> dict[str, list[float]] | None:
        """Measure every metric of many networks at once, with one value per task.

        None, the default: :meth:`evaluate` measures each network separately.
        """
        return None

    @abstractmethod
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Measure every metric; the model is in evaluation mode, without gradients.

        The task must move its data to the model's device here.
        """

    def shorten_evaluation(self, examples: int) -> int | None:
        """Evaluate at most this many examples from now on, for a rehearsal.

        Returns the number of examples that are left, counted as in a batch. None, the
        default: the evaluation stays as it is.
        """
        return None

    def predictions(self, model: nn.Module) -> tuple[Tensor, Tensor] | None:
        """Return the logits and labels of all evaluation examples.

        Only for classification tasks; used to measure calibration.
        """
        return None

    @classmethod
    def start_for(cls, options: Mapping[str, Any]) -> str:
        """Describe the initial weights, before anything is loaded or trained.

        The text is the origin that :meth:`initial_weights` returns. A task raises
        ``UsageError`` here if it needs weights that are missing. Empty, the default:
        not known before the training.
        """
        return ""

    def initial_weights(self) -> tuple[Mapping[str, Tensor], str] | None:
        """Return initial weights and a short text on their origin.

        The weights are entries of the model's state dict, loaded into the model that
        ``model()`` returns; missing entries keep their fresh values, so ``{}`` means
        training from scratch. Every method starts from them. The origin is printed with
        the results, for example "from scratch" or "ImageNet weights from r50.pth".
        None: fresh weights, and no origin is printed.
        """
        return None

    def trivial(self) -> Mapping[str, float] | Mapping[str, Mapping[str, float]]:
        """Return the scores of trivial predictors, printed next to the results.

        Either scores by metric (``{"mse": 29.0}``) or several named predictors
        (``{"mean image": {"mse": 29.0}, "last frame": {"mse": 41.5}}``); metrics may be
        left out. A baseline that is no better is reported as not having learned; names
        that start with "floor" or "ideal" are bounds that need not be beaten. Called
        once per task, with the first seed of the comparison.
        """
        return {}

    def samples(self, model: nn.Module) -> Tensor | Mapping[str, Tensor] | None:
        """Return sample images of a model, shown side by side for the methods.

        Images have the shape N x C x H x W with C = 1 or 3 and values in [0, 1]; a dict
        gives several rows of images with captions, such as "truth" and "prediction".
        Called once per method after training the first seed, like ``evaluate``: in
        evaluation mode, without gradients, inside ``averaged()``, and with the same
        random numbers for every method. None: no images.
        """
        return None


class SeedBatchTask(Task):
    """A task so small that all its seeds are trained as one stacked model.

    The constructor takes the seeds. ``model()`` returns a module whose parameters have
    the seed as first dimension, the loss is the sum of the seeds' losses, and
    ``evaluate`` returns one value per seed. Optimizers and averaging methods work
    element-wise, so each seed trains as it would alone.
    """

    undivided: ClassVar[str] = "it trains all seeds as one stacked model"

    def __init__(self, seeds: tuple[int, ...]) -> None:
        super().__init__(seeds[0])
        self.seeds = seeds

    @abstractmethod
    def evaluate(self, model: nn.Module) -> dict[str, Any]:
        """Measure every metric: a list with one value per seed."""


class PlaneTask(SeedBatchTask):
    """A task with two classes of points in the plane, to plot decision boundaries.

    The constructor sets the points and their classes, with the seed as first dimension.
    """

    x: Tensor
    """Labelled points, (seeds, points, 2)."""
    y: Tensor
    """Their classes, (seeds, points)."""
    x_eval: Tensor
    """Points to evaluate on, (seeds, points, 2)."""
    y_eval: Tensor


class JointLossTask(Task):
    """A task whose loss compares the examples of a batch with each other.

    The loop embeds the examples in parts, by micro-batches and by workers, and computes
    the loss once from the embeddings of the whole step. So neither gradient
    accumulation nor data-parallel workers change what an example is compared with.
    """

    shares_loss: ClassVar[bool] = True

    @abstractmethod
    def embed(self, model: nn.Module, batch: Any) -> tuple[Tensor, ...]:
        """Return what is compared: tensors with one row per example."""

    def targets(self, model: nn.Module, batch: Any) -> tuple[Tensor, ...]:
        """Return rows to compare with that need no gradient, such as a teacher's."""
        return ()

    @abstractmethod
    def joint_loss(
        self,
        model: nn.Module,
        embeddings: tuple[Tensor, ...],
        targets: tuple[Tensor, ...],
    ) -> Tensor:
        """Return the loss of a whole step; it must not run the model."""

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the loss of a batch, over the parts of all workers."""
        gather = self.shard.gather
        return self.joint_loss(
            model,
            tuple(map(gather, self.embed(model, batch))),
            tuple(map(gather, self.targets(model, batch))),
        )


class SelfTeachingTask(Task):
    """A task whose targets come from the averaged model, as in MoCo and BYOL.

    The average affects the training, so methods cannot share one. The loop passes the
    averager to ``teach``, and ``loss`` gets its targets from ``self.teacher(model)``.
    The decay of a method rises along a cosine to ``final_decay``.
    """

    undivided: ClassVar[str] = (
        "it may keep targets of a worker's own examples (a task that does not, or "
        "gathers them, sets undivided = '')"
    )
    final_decay: ClassVar[float] = 1.0
    memory: ClassVar[tuple[str, ...]] = ()
    """Names of tensors that ``loss`` writes into the model, such as a queue of targets.

    They are saved with the model but never averaged. Optimizers that compute the loss
    of a batch twice are refused.
    """
    averager: Averager | None = None

    def teach(self, averager: Averager | None) -> None:
        """Use an average as the teacher; without one the student teaches itself."""
        self.averager = averager

    def teacher(self, model: nn.Module) -> Teacher:
        """Return the teacher that computes a student's targets."""
        averager = self.averager
        return Teacher(model, averager.averaged_tensors) if averager else Teacher(model)
