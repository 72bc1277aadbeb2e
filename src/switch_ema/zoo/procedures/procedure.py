"""Dataclasses that describe a training procedure for image classification."""

import math
from dataclasses import asdict, dataclass, replace

from switch_ema._checks import (
    check_choice,
    check_count,
    check_positive,
    check_range,
)

_CROPS = ("resized", "shifted", "none")
_LOSSES = ("ce", "bce")


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Preprocessing and augmentation of images."""

    test_crop: float = 1.0
    """Share of the height and width kept in tests, in (0, 1]."""
    repeats: int = 1
    """Occurrences of an image per epoch (repeated augmentation)."""
    flip: bool = True
    """Whether to flip images at random, where flipping keeps the class."""
    crop: str = "resized"
    """``resized``: a random crop, enlarged; ``shifted``: shifted by up to an eighth of
    its size; ``none``: the whole image."""
    crop_area: float = 0.08
    """Minimum area of the random crop, in (0, 1]."""
    rand_magnitude: int | None = None
    """Magnitude of RandAugment, 0 to 10."""
    rand_deviation: float = 0.5
    """Standard deviation of the magnitude across images."""
    auto_augment: bool = False
    """Whether to use AutoAugment's policy for ImageNet."""
    color_jitter: float = 0.0
    """Maximum change of brightness, contrast and saturation."""
    mixup: float = 0.0
    """Alpha of Mixup."""
    cutmix: float = 0.0
    """Alpha of CutMix; with both, each batch uses one of them."""
    erasing: float = 0.0
    """Probability of random erasing, in [0, 1)."""

    def __post_init__(self) -> None:
        check_count("repeats", self.repeats)
        for name in ("test_crop", "crop_area"):
            # Both may equal 1; check_range excludes the upper end.
            check_positive(name, getattr(self, name))
            check_range(name, getattr(self, name), 0, math.nextafter(1, 2))
        check_range("erasing", self.erasing, 0, 1)
        for name in ("rand_deviation", "color_jitter", "mixup", "cutmix"):
            check_range(name, getattr(self, name), 0, math.inf)
        if self.rand_magnitude is not None:
            check_count("rand_magnitude", self.rand_magnitude, 0)
            check_range("rand_magnitude", self.rand_magnitude, 0, 11)
        check_choice("crop", self.crop, _CROPS)

    @property
    def mixes(self) -> bool:
        """Whether images and labels are blended (Mixup or CutMix)."""
        return self.mixup > 0 or self.cutmix > 0

    @property
    def works_on_batches(self) -> bool:
        """Whether every augmentation works on whole batches."""
        by_image = self.rand_magnitude is not None or self.auto_augment
        return self.crop != "resized" and not by_image and not self.color_jitter


UNCHANGED = Augmentation(crop="none", flip=False)
"""No augmentation."""


@dataclass(frozen=True, kw_only=True)
class TrainingProcedure(Augmentation):
    """One column of the paper's Table A3."""

    train_resolution: int | None = None
    """Height and width of training images; None keeps their size."""
    test_resolution: int | None = None
    """Height and width of test images; None keeps their size."""
    epochs: int
    """Length of the training."""
    batch_size: int
    """Images per optimizer step."""
    optimizer: str
    """Name with options, such as ``adamw:lr=1e-3,weight_decay=0.05``."""
    decay_all: bool = False
    """Whether every tensor has weight decay, as in the recipes of ResNets with SGD;
    otherwise those of ``is_exempt`` have none."""
    schedule: str = "cosine"
    """Schedule of the learning rate."""
    warmup_epochs: float = 0.0
    """Linear warm-up of the learning rate."""
    label_smoothing: float = 0.0
    """Label smoothing, in [0, 1)."""
    dropout: float = 0.0
    """Dropout rate of the classifier's inputs, in [0, 1)."""
    stochastic_depth: float = 0.0
    """Maximum rate of stochastic depth, in [0, 1)."""
    clip: float | None = None
    """Maximum gradient norm."""
    loss: str = "ce"
    """``ce``: cross-entropy; ``bce``: binary cross-entropy per class."""
    ema_decay: float | None = None
    """Decay of EMA; None makes the average span two thirds of an epoch."""
    switch_ema_decay: float | None = None
    """Decay of Switch EMA; None as for EMA."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("epochs", "batch_size"):
            check_count(name, getattr(self, name))
        for name in ("train_resolution", "test_resolution"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        for name in ("label_smoothing", "dropout", "stochastic_depth"):
            check_range(name, getattr(self, name), 0, 1)
        check_range("warmup_epochs", self.warmup_epochs, 0, math.inf)
        for name in ("ema_decay", "switch_ema_decay"):
            if getattr(self, name) is not None:
                check_range(name, getattr(self, name), 0, 1)
        if self.clip is not None:
            check_positive("clip", self.clip)
        check_choice("loss", self.loss, _LOSSES)


def unaugmented(procedure: TrainingProcedure) -> TrainingProcedure:
    """Return the procedure without augmentation."""
    as_they_are = {**asdict(UNCHANGED), "test_crop": procedure.test_crop}
    return replace(procedure, **as_they_are)
