"""Trains the small networks in seconds on one CPU core.

Learning rates were chosen with plain training on digits, with seeds that no table uses,
without test images or averaging methods. For convolutional networks, MLP-Mixer and Swin
they gave the lowest training loss of two or three candidates, summed over the networks
that Table 2 of the paper trains with the optimizer; SAM uses SGD's rate. DeiT learns
more slowly and trains longer; its rates are the first of a few candidates that reached
80% accuracy on held-out training images.
"""

from dataclasses import replace

from switch_ema.zoo.procedures.procedure import TrainingProcedure

OPTIMIZERS = {
    "sgd": "sgd:lr=0.1,momentum=0.9,weight_decay=5e-4",
    "sam": "sam:base=sgd,rho=0.05,lr=0.1,momentum=0.9,weight_decay=5e-4",
    "lars": "lars:lr=0.02,momentum=0.9,weight_decay=5e-4,trust_coeff=1.0",
    "lamb": "lamb:lr=0.04,weight_decay=0.02",
    "adamw": "adamw:lr=2e-3,weight_decay=0.05",
    "adan": "adan:lr=4e-3,weight_decay=0.02",
}
_FOR_DEIT = {
    "lamb": "lamb:lr=0.01,weight_decay=0.02",
    "adamw": "adamw:lr=5e-3,weight_decay=0.05",
    "adan": "adan:lr=1e-2,weight_decay=0.02",
}
"""DeiT's optimizers, instead of those above."""
IMAGES = 1000
"""Training images and maximum test images."""
RESOLUTIONS = (16, 32)
"""Range of the image size; patches of single pixels carry little information."""


def small(optimizer: str, network: str) -> TrainingProcedure:
    """Return a procedure of a few epochs with light augmentation."""
    procedure = TrainingProcedure(
        epochs=15,
        batch_size=25,
        optimizer=OPTIMIZERS[optimizer],
        decay_all=optimizer in ("sgd", "sam"),
        warmup_epochs=1,
        crop="shifted",
    )
    if not network.startswith("deit"):
        return procedure
    suited = _FOR_DEIT.get(optimizer, OPTIMIZERS[optimizer])
    return replace(procedure, epochs=20, warmup_epochs=3, optimizer=suited)
