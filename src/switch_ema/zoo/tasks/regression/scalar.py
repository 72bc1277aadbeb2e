"""The base of tasks that predict one number per image: the paper's Table 10."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import l1_loss
from torch.optim import AdamW, Optimizer

from switch_ema._checks import check_choice
from switch_ema.bench.optimizers.groups import parameter_groups
from switch_ema.bench.recipe import Metric, Recipe
from switch_ema.bench.task import Task
from switch_ema.zoo.models import create_network
from switch_ema.zoo.tasks.image_batches import EvaluationImages
from switch_ema.zoo.tasks.metrics import predict_shared

NETWORKS = ("resnet18", "resnet50", "convnext-t")
"""The encoders of the paper's Table 10."""
SCALES = ("small", "paper")
SCHEDULE = "cosine:final=1e-3"
"""Schedule at the paper's scale, which ends at a rate of 1e-6."""


def for_network(recipe: Recipe, options: Mapping[str, Any]) -> Recipe:
    """Add what only ConvNeXt has in the released configurations.

    At the paper's scale that is a warm-up of 5 epochs and clipping at 5; at both, from
    revision 1 on, tensors without weight decay.
    """
    if options.get("network") != "convnext-t":
        return recipe
    if options.get("scale") == "paper":
        recipe = replace(recipe, warmup_epochs=5.0, clip=5.0)
    return replace(recipe, revision=max(recipe.revision, 1))


def error_metrics(unit: str) -> tuple[Metric, Metric]:
    """Return the metrics MAE and RMSE, in the given unit."""
    return (
        Metric(name="MAE", higher_is_better=False, unit=unit),
        Metric(name="RMSE", higher_is_better=False, unit=unit),
    )


def errors(found: Tensor, truth: Tensor) -> dict[str, float]:
    """Measure predictions.

    >>> errors(torch.tensor([1.0, 5.0]), torch.tensor([1.0, 1.0]))["MAE"]
    2.0
    """
    error = (found - truth).double()
    return {
        "MAE": error.abs().mean().item(),
        "RMSE": error.square().mean().sqrt().item(),
    }


class ScalarRegression(Task):
    """Predicts one number per image: L1 loss, AdamW, MAE and RMSE.

    Targets are standardised with the median and deviation of the training data, which
    does not change the minimiser of the loss. A subclass sets ``y`` and ``y_eval``,
    calls ``choose_network``, and returns the images of ``y_eval`` from
    ``evaluation_batches``.
    """

    divides_evaluation = True
    small_lr: ClassVar[float] = 3e-3
    """Learning rate of AdamW at small scale."""
    y: Tensor
    """Targets of the training images, in the unit of the metrics."""
    x_eval: Any
    """The evaluation images, which a tensor of indices selects from."""
    y_eval: Tensor

    def choose_network(self, network: str, scale: str, side: int) -> None:
        """Set the network: one of the paper's, or a small version of it."""
        self.network = check_choice("network", network, NETWORKS)
        self.scale = check_choice("scale", scale, SCALES)
        self.side = side

    @abstractmethod
    def evaluation_batches(self) -> Sequence[Tensor] | EvaluationImages:
        """Return the evaluation inputs, in the order of ``y_eval``."""

    def model(self) -> nn.Module:
        """Make the network with one output."""
        deep = self.network == "convnext-t" and self.scale == "paper"
        return create_network(
            self.network,
            num_classes=1,
            image_size=self.side,
            scale=self.scale,
            drop_path=0.3 if deep else 0.0,
        )

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Make AdamW with the settings of the paper's released configurations.

        In them every tensor of ResNets has weight decay.
        """
        groups = parameter_groups(model, decay_all=self.network != "convnext-t")
        if self.scale == "paper":
            return AdamW(groups, lr=1e-3, weight_decay=0.05)
        return AdamW(groups, lr=self.small_lr)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the mean absolute error of the standardised targets."""
        x, y = batch
        centre, spread = self._units()
        return l1_loss(model(x).squeeze(1), (y - centre) / spread)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Measure the errors in the unit of the metrics."""
        centre, spread = self._units()
        images, truth = self.evaluation_batches(), self.y_eval
        if isinstance(images, EvaluationImages):
            found, read = images.predict(model, self.shard)
            truth = truth[read]
        else:
            found = predict_shared(model, images, self.shard, read=_as_it_is)
        return errors(centre + spread * found.squeeze(1), truth)

    def shorten_evaluation(self, examples: int) -> int:
        """Keep the first evaluation images."""
        few = torch.arange(min(examples, len(self.y_eval)))
        self.x_eval, self.y_eval = self.x_eval[few], self.y_eval[few]
        return len(few)

    def trivial(self) -> dict[str, dict[str, float]]:
        """Measure the median of the training data, the best constant for MAE."""
        constant = self.y.median().expand_as(self.y_eval)
        return {"constant": errors(constant, self.y_eval)}

    def _units(self) -> tuple[Tensor, Tensor]:
        return self.y.median(), self.y.std().clamp(min=torch.finfo().eps)


def _as_it_is(images: Tensor) -> Tensor:
    return images
