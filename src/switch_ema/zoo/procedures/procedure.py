"""What a training procedure for image classification consists of."""

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
    """What happens to an image before a network sees it."""

    test_crop: float = 1.0
    """Share of the height and width that a test sees, in (0, 1]."""
    repeats: int = 1
    """How often an image comes in one epoch (repeated augmentation)."""
    flip: bool = True
    """Mirror images at random, where a mirrored image has the same class."""
    crop: str = "resized"
    """``resized``: a random part, enlarged; ``shifted``: moved by up to an eighth of
    its size; ``none``: the whole image."""
    crop_area: float = 0.08
    """Smallest area of the random part, in (0, 1]."""
    rand_magnitude: int | None = None
    """Strength of RandAugment, 0 to 10."""
    rand_deviation: float = 0.5
    """Standard deviation of that strength from image to image."""
    auto_augment: bool = False
    """Use the operations that AutoAugment found for ImageNet."""
    color_jitter: float = 0.0
    """Largest change of brightness, contrast and saturation."""
    mixup: float = 0.0
    """Alpha of Mixup."""
    cutmix: float = 0.0
    """Alpha of CutMix; with both, each batch takes one of them."""
    erasing: float = 0.0
    """Probability that a rectangle is replaced by noise, in [0, 1)."""

    def __post_init__(self) -> None:
        check_count("repeats", self.repeats)
        for name in ("test_crop", "crop_area"):
            # The ranges that are checked exclude their end, which is allowed here.
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
        """Whether images are blended with each other, and so their labels."""
        return self.mixup > 0 or self.cutmix > 0

    @property
    def works_on_batches(self) -> bool:
        """Whether all that is done to an image can be done to a batch at once."""
        by_image = self.rand_magnitude is not None or self.auto_augment
        return self.crop != "resized" and not by_image and not self.color_jitter


UNCHANGED = Augmentation(crop="none", flip=False)
"""Images as they are."""


@dataclass(frozen=True, kw_only=True)
class TrainingProcedure(Augmentation):
    """Everything that Table A3 of the paper lists, for one column of it."""

    train_resolution: int | None = None
    """Height and width of the images in training; None leaves them as they are."""
    test_resolution: int | None = None
    """Height and width of the images in tests; None leaves them as they are."""
    epochs: int
    """Length of the training."""
    batch_size: int
    """Images per optimizer step."""
    optimizer: str
    """Name with options, such as ``adamw:lr=1e-3,weight_decay=0.05``."""
    schedule: str = "cosine"
    """Schedule of the learning rate."""
    warmup_epochs: float = 0.0
    """Linear warm-up of the learning rate."""
    label_smoothing: float = 0.0
    """Share of a target that is spread evenly over all classes, in [0, 1)."""
    dropout: float = 0.0
    """Share of the classifier's inputs that are dropped, in [0, 1)."""
    stochastic_depth: float = 0.0
    """Largest rate at which residual blocks are dropped, in [0, 1)."""
    clip: float | None = None
    """Largest norm of the gradients."""
    loss: str = "ce"
    """``ce``: cross-entropy; ``bce``: binary cross-entropy of each class."""
    ema_decay: float | None = None
    """Decay of EMA; None lets the average span two thirds of an epoch."""
    switch_ema_decay: float | None = None
    """Decay of Switch EMA; None as above."""

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
    """Return the procedure with training images as they are."""
    as_they_are = {**asdict(UNCHANGED), "test_crop": procedure.test_crop}
    return replace(procedure, **as_they_are)
