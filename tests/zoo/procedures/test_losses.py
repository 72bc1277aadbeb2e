"""The losses for labels and soft targets, against their definitions."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import log_softmax, logsigmoid, one_hot

from switch_ema.zoo.procedures import TrainingProcedure, classification_loss

CE = TrainingProcedure(epochs=1, batch_size=2, optimizer="sgd")
BCE = replace(CE, loss="bce")
LABELS = torch.tensor([2, 0, 1, 2])


def outputs():
    return torch.randn(4, 3)


def definition(outputs, targets, procedure):
    """Sum over classes, written out."""
    smoothing, classes = procedure.label_smoothing, outputs.shape[1]
    targets = targets * (1 - smoothing) + smoothing / classes
    if procedure.loss == "ce":
        return -(targets * log_softmax(outputs, 1)).sum(1).mean()
    on, off = logsigmoid(outputs), logsigmoid(-outputs)
    return -(targets * on + (1 - targets) * off).mean()


@pytest.mark.parametrize("procedure", [CE, BCE], ids=["ce", "bce"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_labels_and_soft_targets(procedure, smoothing):
    procedure = replace(procedure, label_smoothing=smoothing)
    out, hard = outputs(), one_hot(LABELS, 3).float()
    expected = definition(out, hard, procedure)
    assert classification_loss(out, LABELS, procedure) == pytest.approx(expected.item())
    soft = 0.7 * hard + 0.3 * hard.flip(0)
    expected = definition(out, soft, procedure)
    assert classification_loss(out, soft, procedure) == pytest.approx(expected.item())


def test_losses_differ():
    out = outputs()
    values = {
        classification_loss(out, LABELS, procedure).item()
        for procedure in (CE, BCE, replace(CE, label_smoothing=0.1))
    }
    assert len(values) == 3
