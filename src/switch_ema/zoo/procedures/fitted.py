"""Training of the small networks in the paper's regime, in seconds on one core.

The paper trains for so long that a network fits its training images: the learning rate
falls to zero along a cosine, and without augmentation the training loss ends near zero.
Between two switches it keeps a share of the progress that follows from the decay and
from the steps of an epoch. Few small images let a small network do the same, with the
decays that keep the same share of an epoch of fewer steps.

Learning rates are those of ``small``, or else ``OPTIMIZERS``; these and the epochs were
chosen by the training loss of plain training with a seed that no table uses.
"""

from dataclasses import replace

from switch_ema.averaging.schedules.auto import decay_for_share, surviving_share
from switch_ema.bench.spec import parse_spec
from switch_ema.zoo.procedures.procedure import TrainingProcedure
from switch_ema.zoo.procedures.small import small

IMAGES, TEST_IMAGES, BATCH = 1000, 2000, 50
"""How many images are trained on, at most tested on, and in a batch."""
_HALVED = ("mlp-mixer", "swin-t", "swin-s", "moganet-s", "moganet-b")
"""Slow networks have half of the images in batches of half the size."""
SIDE = 16
"""Height and width of the images."""
EPOCHS, EPOCHS_AUGMENTED = 40, 120
"""An image that is augmented is learnt later."""
OPTIMIZERS = {
    "lars": "lars:lr=0.01,momentum=0.9,weight_decay=5e-4,trust_coeff=1.0",
    "lamb": "lamb:lr=0.02,weight_decay=0.02",
}
"""Of networks other than DeiT. They fit images later, in twice the epochs."""
EVALUATE_EVERY = 10
"""Epochs between two evaluations, which would otherwise take a third of the time."""
STACKS = {"resnet18": 16, "resnet50": 16, "moganet-s": 16, "moganet-b": 16}
"""How many of a network are best trained at once, as it was measured."""


def images_for(network: str) -> int:
    """Return how many images a network is trained on."""
    return IMAGES // 2 if network in _HALVED else IMAGES


def fitted(
    procedure: TrainingProcedure, network: str, *, augment: bool
) -> TrainingProcedure:
    """Return the procedure of the small network that stands for one of the paper's.

    It has the paper's optimizer, at the rate of the small network, and its share of
    warm-up.

    Args:
        procedure: The paper's.
        network: A key of ``NETWORKS``.
        augment: Whether images are augmented, which takes more epochs.
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
    """Return the decay of which a switch keeps the same share as of the paper's.

    Args:
        decay: The paper's.
        their_steps: Optimizer steps of an epoch in the paper.
        steps: Optimizer steps of an epoch here.

    >>> round(surviving_share(decay_in_epochs(0.99, 500, 20), 20), 2)
    0.8
    """
    return round(decay_for_share(surviving_share(decay, their_steps), steps), 5)
