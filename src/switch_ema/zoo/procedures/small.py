"""Training of the small networks, in seconds on one core of a CPU.

Learning rates were chosen by plain training alone, on digits, with seeds that no table
uses; neither test images nor averaging methods had a part in it. Those of convolutional
networks, MLP-Mixer and Swin gave the lowest training loss among two or three, summed
over the networks that Table 2 of the paper trains with the optimizer; SAM takes that of
SGD. Those of DeiT, which learns more slowly and so for longer, are the first of a few
that brought the accuracy on held-out training images to 80%.
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
"""Optimizers of DeiT, instead of those above."""
IMAGES = 1000
"""How many images are trained on, and at most tested on."""
RESOLUTIONS = (16, 32)
"""Range of the image size: patches of single pixels tell a network little."""


def small(optimizer: str, network: str) -> TrainingProcedure:
    """Return a few epochs with light augmentation, for one of ``OPTIMIZERS``."""
    procedure = TrainingProcedure(
        epochs=15,
        batch_size=25,
        optimizer=OPTIMIZERS[optimizer],
        warmup_epochs=1,
        crop="shifted",
    )
    if not network.startswith("deit"):
        return procedure
    suited = _FOR_DEIT.get(optimizer, OPTIMIZERS[optimizer])
    return replace(procedure, epochs=20, warmup_epochs=3, optimizer=suited)
