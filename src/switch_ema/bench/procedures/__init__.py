"""How the paper trains its classifiers, and how their small siblings are trained."""

from switch_ema.bench.procedures.cifar import cifar100
from switch_ema.bench.procedures.ingredients import TrainingProcedure
from switch_ema.bench.procedures.losses import classification_loss
from switch_ema.bench.procedures.procedures import (
    PROCEDURES,
    create_procedure,
    default_procedure,
)

__all__ = [
    "PROCEDURES",
    "TrainingProcedure",
    "cifar100",
    "classification_loss",
    "create_procedure",
    "default_procedure",
]
