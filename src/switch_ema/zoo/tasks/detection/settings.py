"""Training settings of detectors, at the paper's scale and small."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from switch_ema._checks import check_choice
from switch_ema.bench.errors import UsageError
from switch_ema.bench.recipe import Recipe
from switch_ema.bench.spec import Spec
from switch_ema.zoo.decays import DECAYS, Decays

_COCO_IMAGES = 117_266
"""COCO 2017 training images with at least one box."""
SCALES = ("small", "paper")


@dataclass(frozen=True, kw_only=True)
class DetectionSchedule:
    """Length, resolutions and optimizer of a detector's training."""

    epochs: int
    repeats: int = 1
    """Passes over the images per epoch, as in MMDetection's ``RepeatDataset``."""
    shorter_sides: tuple[int, ...] = (800,)
    """Training scales an image to one of these sides; tests use the last."""
    schedule: str
    """Schedule of the learning rate."""
    warmup_epochs: float = 0.07
    """Warm-up in epochs: 500 steps of 16 images."""
    batch: int = 16
    plain_epochs: int = 0
    """Final epochs without Mosaic and MixUp."""

    def steps(self, images: int, batch: int) -> int:
        """Return the optimizer steps per epoch."""
        return max(images * self.repeats // batch, 1)


def _steps_at(*milestones: float) -> str:
    return str(Spec("step", {"milestones": tuple(round(m, 4) for m in milestones)}))


_MULTI_SCALE = (640, 672, 704, 736, 768, 800)
SCHEDULES = {
    "1x": DetectionSchedule(epochs=12, schedule=_steps_at(8 / 12, 11 / 12)),
    "2x": DetectionSchedule(epochs=24, schedule=_steps_at(16 / 24, 22 / 24)),
    "3x": DetectionSchedule(
        epochs=12,
        repeats=3,
        shorter_sides=_MULTI_SCALE,
        schedule=_steps_at(9 / 12, 11 / 12),
    ),
    "9x": DetectionSchedule(
        epochs=36,
        repeats=3,
        shorter_sides=_MULTI_SCALE,
        schedule=_steps_at(27 / 36, 33 / 36),
    ),
    "yolox-300": DetectionSchedule(
        epochs=300,
        # Quadratic warm-up; the last 15 epochs keep the final rate.
        schedule="cosine:final=0.05,hold=0.05,warmup_power=2",
        warmup_epochs=5,
        batch=64,
        plain_epochs=15,
    ),
}
"""The paper's schedules on COCO; 3x and 9x are 12 and 36 epochs of three passes."""

_DECAYS_OF_THE_PAPER = DECAYS["coco", "detection"]
"""Shared by all detectors, with or without masks."""


@dataclass(frozen=True, kw_only=True)
class SmallTraining:
    """Small training settings, by schedule."""

    epochs: Mapping[str, int]
    """Epochs, with as many repeats as the paper's schedule."""
    size: int
    """Training images of ``shapes``."""
    batch: int = 4
    learning_rate: float = 2e-3
    plain_epochs: int = 0


def schedule_of(name: str) -> DetectionSchedule:
    """Look up a schedule by name."""
    try:
        return SCHEDULES[check_choice("schedule", name, tuple(SCHEDULES))]
    except ValueError as error:
        raise UsageError(str(error)) from None


def paper_recipe(name: str, batch: int | None, revision: int) -> Recipe:
    """Return the paper's recipe; gradients of smaller batches accumulate."""
    schedule = schedule_of(name)
    return Recipe(
        epochs=schedule.epochs,
        schedule=schedule.schedule,
        warmup_epochs=schedule.warmup_epochs,
        accumulate=max(schedule.batch // (batch or schedule.batch), 1),
        methods=_DECAYS_OF_THE_PAPER.options(),
        revision=revision,
    )


def small_recipe(
    name: str, training: SmallTraining, images: int, batch: int | None, revision: int
) -> Recipe:
    """Return a recipe of a few seconds, with decays scaled from the paper's.

    For Switch EMA the averaging window of 1 / (1 - d) steps is the same share of an
    epoch as in the paper, so a switch keeps the same share of an epoch's progress. For
    EMA, which never switches, it is the same share of the whole training. Decays are at
    least 0.5, where a switch keeps nearly everything.
    """
    schedule = schedule_of(name)
    if name not in training.epochs:
        known = ", ".join(training.epochs)
        raise UsageError(
            f"schedule must be one of {known} at small scale, got {name!r}."
        )
    epochs = training.epochs[name]
    theirs = schedule.steps(_COCO_IMAGES, schedule.batch)
    ours = schedule.steps(images, batch or training.batch)
    kept = (1 - _DECAYS_OF_THE_PAPER.switch_ema) * theirs / ours
    window = (1 - _DECAYS_OF_THE_PAPER.ema) * theirs * schedule.epochs / (ours * epochs)
    decays = Decays(*(round(1 - min(weight, 0.5), 4) for weight in (window, kept)))
    return Recipe(
        epochs=epochs,
        schedule="one-cycle",
        clip=5.0,
        evaluate_every=math.ceil(epochs / 2),
        methods=decays.options(),
        revision=revision,
    )
