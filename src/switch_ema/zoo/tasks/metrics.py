"""Shared metrics, and the base of classification tasks."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from switch_ema.bench import recipe
from switch_ema.bench.loaders import WHOLE, BatchPart, feed
from switch_ema.bench.sharding import Shard
from switch_ema.bench.stacking.modules import Stacked
from switch_ema.bench.task import Metric, Task

ACCURACY = Metric(name="accuracy", higher_is_better=True, unit="%")
NLL = Metric(name="nll", higher_is_better=False)
ECE = Metric(name="ece", higher_is_better=False, unit="%")
TRAINING_LOSS = Metric(name=recipe.TRAINING_LOSS, higher_is_better=False)
"""Measured on training images without augmentation, in evaluation mode."""
_T = TypeVar("_T")


def predict(
    model: nn.Module, batches: Iterable[Tensor], part: BatchPart = WHOLE
) -> Tensor:
    """Return the outputs of all batches, or of a part of each, on the CPU."""
    device = next(model.parameters()).device
    placed = feed(batches, device, part=part)
    return torch.cat([model(batch).float().cpu() for batch in placed])


def predict_shared(
    model: nn.Module,
    batches: Sequence[_T],
    shard: Shard,
    read: Callable[[_T], Tensor],
) -> Tensor:
    """Return the outputs of all batches, of which each worker computes its share.

    Batches stay whole, so the outputs are the same for any number of workers.

    Args:
        model: The network.
        batches: What to predict, in order.
        shard: The worker's share of them.
        read: Returns the inputs of a batch.
    """
    if len(batches) < shard.ranks:  # too few to divide
        return predict(model, map(read, batches))
    own = batches[shard.share(len(batches))]
    return shard.gather(predict(model, map(read, own)))


def percent_correct(predicted: Tensor, labels: Tensor) -> float:
    """Return the accuracy of predicted classes in percent."""
    return 100 * (predicted.cpu() == labels).double().mean().item()


def classified(outputs: Tensor, labels: Tensor) -> dict[str, float]:
    """Return the accuracy in percent and the mean negative log-likelihood."""
    return {
        "accuracy": percent_correct(outputs.argmax(1), labels),
        "nll": cross_entropy(outputs, labels).item(),
    }


def one_class(labels: Tensor) -> dict[str, dict[str, float]]:
    """Return the accuracy of the best classifier that needs no training.

    >>> one_class(torch.tensor([0, 1, 1, 2]))
    {'always predicting the most frequent class': {'accuracy': 50.0}}
    """
    share = labels.flatten().bincount().max().item() / labels.numel()
    return {"always predicting the most frequent class": {"accuracy": 100 * share}}


class Classifier(Task):
    """A classification task: cross-entropy loss, accuracy and NLL as metrics.

    A subclass sets ``y_eval``, the evaluation labels, and returns their inputs from
    :meth:`evaluation_batches`.
    """

    metrics: tuple[Metric, ...] = (ACCURACY, NLL)
    y_eval: Tensor

    @abstractmethod
    def evaluation_batches(self) -> Iterable[Tensor]:
        """Return the evaluation inputs, in the order of the labels."""

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the cross-entropy of a batch."""
        x, y = batch
        return cross_entropy(model(x), y)

    def stacked_losses(self, stack: Stacked, batch: Any) -> Tensor:
        """Return the cross-entropies of many networks, each on its own batch."""
        if type(self).loss is not Classifier.loss:
            return super().stacked_losses(stack, batch)
        x, y = batch
        outputs = stack.outputs(x).flatten(0, 1)
        each = cross_entropy(outputs, y.flatten(), reduction="none")
        return each.view(y.shape).mean(1)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Measure accuracy in percent and the mean negative log-likelihood."""
        return classified(*self.predictions(model))

    def trivial(self) -> dict[str, dict[str, float]]:
        """Measure the most frequent class of the evaluation labels."""
        return one_class(self.y_eval)

    def stacked_values(
        self, stack: Stacked, tasks: Sequence[Task]
    ) -> dict[str, list[float]] | None:
        """Measure all perceptrons at once, unless a subclass overrides this.

        Other networks are measured one by one: in large batches computation dominates,
        and convolutions compute faster one network at a time.
        """
        own = type(self)
        is_ours = own.evaluate is Classifier.evaluate
        is_ours = is_ours and own.predictions is Classifier.predictions
        if not (is_ours and stack.is_perceptron):
            return None
        same = [task for task in tasks if isinstance(task, Classifier)]
        device = next(stack.parameters()).device
        parts = []
        for batches in zip(*(task.evaluation_batches() for task in same), strict=True):
            x = torch.stack(list(batches)).to(device)
            parts.append(stack.outputs(x).float().cpu())
        outputs = torch.cat(parts, 1)
        labels = torch.stack([task.y_eval for task in same])
        correct = (outputs.argmax(2) == labels).double().mean(1) * 100
        losses = cross_entropy(
            outputs.flatten(0, 1), labels.flatten(), reduction="none"
        )
        nll = losses.view(labels.shape).mean(1)
        return {"accuracy": correct.tolist(), "nll": nll.tolist()}

    def predictions(self, model: nn.Module) -> tuple[Tensor, Tensor]:
        """Return the logits and labels of the evaluation examples."""
        return predict(model, self.evaluation_batches()), self.y_eval
