"""Trains the small networks in the paper's regime, in seconds on one core.

The paper trains until a network fits its training images: the learning rate decays to
zero along a cosine, and without augmentation the training loss ends near zero. A switch
keeps a share of an epoch's progress that depends on the decay and the steps per epoch.
A small network does the same on a few small images, with decays adjusted to keep that
share with fewer steps per epoch.

Learning rates are those of ``small`` or of ``OPTIMIZERS``; these and the epochs were
chosen by the training loss of plain training, with a seed that no table uses.
"""

from dataclasses import replace

from switch_ema.averaging.schedules.auto import decay_for_share, surviving_share
from switch_ema.bench.spec import parse_spec
from switch_ema.zoo.procedures.procedure import TrainingProcedure
from switch_ema.zoo.procedures.small import small

IMAGES, TEST_IMAGES, BATCH = 1000, 2000, 50
"""Training images, maximum test images, and batch size."""
_HALVED = ("mlp-mixer", "swin-t", "swin-s", "moganet-s", "moganet-b")
"""Slow networks get half the images, in batches of half the size."""
SIDE = 16
"""Height and width of the images."""
EPOCHS, EPOCHS_AUGMENTED = 40, 120
"""Augmented images take longer to fit."""
OPTIMIZERS = {
    "lars": "lars:lr=0.01,momentum=0.9,weight_decay=5e-4,trust_coeff=1.0",
    "lamb": "lamb:lr=0.02,weight_decay=0.02",
}
"""Optimizers that need twice the epochs to fit; not used for DeiT."""
EVALUATE_EVERY = 10
"""Epochs between evaluations; evaluating every epoch takes a third of the time."""
STACKS = {"resnet18": 16, "resnet50": 16, "moganet-s": 16, "moganet-b": 16}
"""Fastest number of copies to train at once, as measured, by network."""


def images_for(network: str) -> int:
    """Return the number of training images of a network."""
    return IMAGES // 2 if network in _HALVED else IMAGES


def fitted(
    procedure: TrainingProcedure, network: str, *, augment: bool
) -> TrainingProcedure:
    """Return the procedure of the small version of one of the paper's networks.

    It uses the paper's optimizer at the small network's learning rate, with the same
    share of warm-up.

    Args:
        procedure: The paper's.
        network: A key of ``NETWORKS``.
        augment: Whether to augment images, which takes more epochs.
    """
    epochs = EPOCHS_AUGMENTED if augment else EPOCHS
    name = parse_spec(procedure.optimizer).name
    found = small(name, network)
    if name in OPTIMIZERS and not network.startswith("deit"):
        found, epochs = replace(found, optimizer=OPTIMIZERS[name]), 2 * epochs
    share = procedure.warmup_epochs / procedure.epochs
    return replace(
        found,
        epochs=epochs,
        batch_size=BATCH // 2 if network in _HALVED else BATCH,
        warmup_epochs=max(1, round(epochs * share)),
    )


def decay_in_epochs(decay: float, their_steps: float, steps: int) -> float:
    """Return the decay at which a switch keeps the same share as in the paper.

    Args:
        decay: The paper's.
        their_steps: Optimizer steps per epoch in the paper.
        steps: Optimizer steps per epoch here.

    >>> round(surviving_share(decay_in_epochs(0.99, 500, 20), 20), 2)
    0.8
    """
    return round(decay_for_share(surviving_share(decay, their_steps), steps), 5)
