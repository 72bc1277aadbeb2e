"""Training procedures of the paper's classifiers and of their small versions."""

from switch_ema.zoo.procedures.catalog import (
    PROCEDURES,
    create_procedure,
    default_procedure,
)
from switch_ema.zoo.procedures.cifar import cifar100
from switch_ema.zoo.procedures.losses import classification_loss
from switch_ema.zoo.procedures.procedure import (
    UNCHANGED,
    Augmentation,
    TrainingProcedure,
)

__all__ = [
    "PROCEDURES",
    "UNCHANGED",
    "Augmentation",
    "TrainingProcedure",
    "cifar100",
    "classification_loss",
    "create_procedure",
    "default_procedure",
]
