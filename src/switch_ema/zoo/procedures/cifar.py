"""Training on CIFAR-100, by network.

The paper gives 200 epochs, the resolutions and the decay of 0.99; everything else is as
in the configurations released by its authors: those for weight averaging, which have
neither Mixup nor CutMix nor erasing. Swin-S and MogaNet-S are only among those with
advanced augmentation.
"""

from dataclasses import replace
from typing import Any

from switch_ema.zoo.decays import DECAYS
from switch_ema.zoo.procedures.procedure import TrainingProcedure

_DECAYS = DECAYS["cifar100", "classification"]
_ADAMW = "adamw:lr={},betas=(0.9,0.999),weight_decay=0.05"
_MIXES: dict[str, Any] = {"mixup": 0.8, "cutmix": 1.0}
_STOCHASTIC_DEPTH = {
    "deit-t": 0.1,
    "deit-s": 0.1,
    "deit-b": 0.1,
    "swin-t": 0.2,
    "swin-s": 0.3,
    "convnext-t": 0.3,
    "convnext-s": 0.4,
    "moganet-s": 0.1,
    "moganet-b": 0.1,
}


def cifar100(network: str) -> TrainingProcedure:
    """Return the procedure for a network.

    >>> cifar100("wrn28-10").optimizer
    'sgd:lr=0.03,momentum=0.9,weight_decay=1e-3'
    """
    family = network.partition("-")[0]
    if family in ("deit", "mlp", "swin"):
        return _patched(network)
    if family in ("convnext", "moganet"):
        return _modern(network)
    return _classical(network)


def _classical(network: str) -> TrainingProcedure:
    wide = network.startswith("wrn28")
    rates = (
        "lr=0.03,momentum=0.9,weight_decay=1e-3"
        if wide
        else ("lr=0.1,momentum=0.9,weight_decay=1e-4")
    )
    return TrainingProcedure(
        epochs=200,
        batch_size=100,
        optimizer=f"sgd:{rates}",
        decay_all=True,
        crop="shifted",
        ema_decay=_DECAYS.ema,
        switch_ema_decay=_DECAYS.switch_ema,
    )


def _modern(network: str) -> TrainingProcedure:
    procedure = replace(
        _classical(network),
        optimizer=_ADAMW.format("1e-3"),
        decay_all=False,
        warmup_epochs=5,
        label_smoothing=0.1,
        stochastic_depth=_STOCHASTIC_DEPTH.get(network, 0.0),
        clip=None if network.startswith("convnext") else 5.0,
        rand_magnitude=7,
    )
    if not network.startswith("moganet"):
        return procedure
    return replace(procedure, rand_magnitude=9, erasing=0.25, **_MIXES)


def _patched(network: str) -> TrainingProcedure:
    """Enlarge the images for networks with patches of 16 or 4 pixels."""
    procedure = replace(
        _modern(network),
        train_resolution=224,
        test_resolution=224,
        dropout=0.1 if network == "mlp-mixer" else 0.0,
        crop="resized",
        crop_area=0.8,
    )
    if network != "swin-s":
        return procedure
    return replace(
        procedure,
        optimizer=_ADAMW.format("5e-4"),
        schedule="cosine:final=2e-3",  # 1e-6
        warmup_epochs=20,
        **_MIXES,
    )
