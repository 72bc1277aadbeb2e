"""The training procedures for ImageNet-1K: Table A3 of the paper.

The decays are those of Table A1. The cosines end at the minimum rates of the released
configurations, 1e-6 or 1e-5, which the table leaves out.
"""

from dataclasses import replace

from switch_ema.zoo.decays import DECAYS
from switch_ema.zoo.procedures.procedure import TrainingProcedure

_DECAYS = DECAYS["imagenet", "classification"]


def pytorch() -> TrainingProcedure:
    """Train a ResNet-50 for 100 epochs with basic augmentation."""
    return TrainingProcedure(
        train_resolution=224,
        test_resolution=224,
        test_crop=0.875,
        epochs=100,
        batch_size=256,
        optimizer="sgd:lr=0.1,momentum=0.9,weight_decay=1e-4",
        decay_all=True,
        ema_decay=_DECAYS.ema,
        switch_ema_decay=_DECAYS.switch_ema,
    )


def sam() -> TrainingProcedure:
    """Train as ``pytorch``, with SAM at its default radius."""
    optimizer = "sam:base=sgd,rho=0.05,lr=0.1,momentum=0.9,weight_decay=1e-4"
    return replace(pytorch(), optimizer=optimizer)


def deit() -> TrainingProcedure:
    """Train a DeiT-S for 300 epochs."""
    return replace(
        pytorch(),
        epochs=300,
        batch_size=1024,
        optimizer="adamw:lr=1e-3,betas=(0.9,0.999),weight_decay=0.05",
        decay_all=False,
        schedule="cosine:final=1e-3",  # 1e-6
        warmup_epochs=5,
        label_smoothing=0.1,
        stochastic_depth=0.1,
        repeats=3,
        clip=5.0,
        rand_magnitude=9,
        mixup=0.8,
        cutmix=1.0,
        erasing=0.25,
    )


def convnext() -> TrainingProcedure:
    """Train a ConvNeXt or a Swin transformer for 300 epochs."""
    return replace(
        deit(),
        batch_size=4096,
        optimizer="adamw:lr=4e-3,betas=(0.9,0.999),weight_decay=0.05",
        schedule="cosine:final=2.5e-3",  # 1e-5
        warmup_epochs=20,
        clip=None,
    )


def moganet() -> TrainingProcedure:
    """Train a MogaNet-B as ``deit``, with the stochastic depth of its release."""
    return replace(deit(), schedule="cosine:final=1e-2", stochastic_depth=0.2)


def rsb_a2() -> TrainingProcedure:
    """Train a ResNet-50 for 300 epochs as "ResNet strikes back" does."""
    return replace(
        pytorch(),
        test_crop=0.95,
        epochs=300,
        batch_size=2048,
        optimizer="lamb:lr=5e-3,betas=(0.9,0.999),weight_decay=0.02",
        decay_all=False,
        schedule="cosine:final=2e-4",  # 1e-6
        warmup_epochs=5,
        stochastic_depth=0.05,
        repeats=3,
        rand_magnitude=7,
        mixup=0.1,
        cutmix=1.0,
        loss="bce",
    )


def rsb_a3() -> TrainingProcedure:
    """Train for 100 epochs on smaller images."""
    return replace(
        rsb_a2(),
        train_resolution=160,
        epochs=100,
        optimizer="lamb:lr=8e-3,betas=(0.9,0.999),weight_decay=0.02",
        schedule="cosine:final=1.25e-4",  # 1e-6
        stochastic_depth=0.0,
        repeats=1,
        rand_magnitude=6,
    )


def adan() -> TrainingProcedure:
    """Train a DeiT-S for 150 epochs, including 60 of warm-up."""
    return replace(
        deit(),
        test_crop=0.85,
        epochs=150,
        batch_size=2048,
        optimizer="adan:lr=1.6e-2,betas=(0.98,0.92,0.99),weight_decay=0.02",
        schedule="cosine:final=6.25e-4",  # 1e-5
        warmup_epochs=60,
        repeats=1,
        rand_magnitude=7,
    )


def lars() -> TrainingProcedure:
    """Train a ResNet-50 as RSB A3, with LARS.

    The table gives LAMB's learning rate, which is relative to the norm of a layer, so
    the trust coefficient is 1: with the usual 0.001, weights would change by less than
    half of their norm over the whole training.
    """
    optimizer = "lars:lr=8e-3,momentum=0.9,weight_decay=0.02,trust_coeff=1.0"
    return replace(rsb_a3(), optimizer=optimizer)
