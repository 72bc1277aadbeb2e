"""The loss of a procedure, for labels and for Mixup's soft targets."""

from torch import Tensor
from torch.nn.functional import (
    binary_cross_entropy_with_logits,
    cross_entropy,
    one_hot,
)

from switch_ema.zoo.procedures.procedure import TrainingProcedure


def classification_loss(
    outputs: Tensor, targets: Tensor, procedure: TrainingProcedure
) -> Tensor:
    """Return the mean loss of a batch.

    Args:
        outputs: Logits, (images, classes).
        targets: Labels (images,), or class probabilities (images, classes).
        procedure: Defines the loss and the label smoothing.
    """
    smoothing = procedure.label_smoothing
    if procedure.loss == "ce":
        return cross_entropy(outputs, targets, label_smoothing=smoothing)
    classes = outputs.shape[1]
    if targets.dim() == 1:
        targets = one_hot(targets, classes)
    targets = (1 - smoothing) * targets.to(outputs.dtype) + smoothing / classes
    return binary_cross_entropy_with_logits(outputs, targets)
