"""The base of all detection tasks: data, schedules, metrics, pictures."""

import warnings
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from switch_ema._checks import check_choice, check_count
from switch_ema.bench.errors import UsageError
from switch_ema.bench.optimizers.groups import parameter_groups
from switch_ema.bench.task import Loader, Metric, Recipe, Task
from switch_ema.zoo.data.boxes import flipping
from switch_ema.zoo.data.detection import Examples, Target, load_detection
from switch_ema.zoo.data.sample_loader import count_workers, wanted_workers
from switch_ema.zoo.data.splits import check_split
from switch_ema.zoo.models.detection.backbones import BACKBONES, pretrained_weights
from switch_ema.zoo.models.pretrained import (
    NONE,
    described_file,
    find_weights_file,
    required_weights,
)
from switch_ema.zoo.tasks.detection import measure, pictures
from switch_ema.zoo.tasks.detection.batches import (
    Batch,
    DetectionLoader,
    EvaluationExamples,
)
from switch_ema.zoo.tasks.detection.settings import (
    SCALES,
    SmallTraining,
    paper_recipe,
    schedule_of,
    small_recipe,
)

IMAGENET = "imagenet"
_FROM_SCRATCH = "from scratch"
_SIDES = {"shapes": 64, "bccd": 128, "nuclei": 256}
_OTHER_SIDE = 128
"""Longest image side at small scale."""
_CROPS = {"nuclei": 128}
"""Side of the training crops; other datasets train on whole images."""
_TRAINED = {"bccd": 292, "nuclei": 320}
_OTHERS_TRAINED = 300
"""Training images at small scale; the recipe is made before the data is loaded."""
_SHOWN, _COUNTED = 5, 500


class Detection(Task):
    """An object detector; see the subclasses.

    Args:
        seed: Random seed.
        split: Evaluate on ``test`` images or on a held-out fifth of the training images
            (``validation``).
        dataset: ``shapes``, ``bccd``, ``nuclei``, ``coco`` or the path of a folder in
            COCO format.
        backbone: ``resnet50`` or ``swin-t``.
        scale: ``small`` trains a small version at 64 to 256 pixels in a minute or two;
            ``paper`` uses the paper's network, resolutions and schedule.
        schedule: ``1x``, ``2x``, ``3x``, ``9x`` or ``yolox-300``; default: the paper's.
        size: Training images; default: all, or a few hundred shapes.
        test_size: Test images, likewise.
        image_size: Longest side at small scale, shorter side at the paper's.
        batch: Images per forward pass.
        weights: Initial weights of the backbone at scale ``paper``: ``imagenet``, found
            in torch's or Hugging Face's cache or in the data folder; the path of such a
            file; or ``none`` for random weights. Default: ``imagenet``.
        workers: Processes that read and augment images; default: at the paper's scale
            one per core, up to 16.
    """

    metrics: tuple[Metric, ...] = (measure.BOX_AP, measure.BOX_AP50)
    loss_in_training_only = True
    shares_loss = True
    uses_all_parameters = True
    divides_evaluation = True
    masks: ClassVar[bool] = False
    """Whether to train and measure masks."""
    drawn_from: ClassVar[float] = 0.3
    """Minimum score of the detections drawn in pictures."""
    revision: ClassVar[int] = 1  # tensors without weight decay
    """That of the recipe."""
    usual_schedule: ClassVar[str]
    small: ClassVar[SmallTraining]

    @classmethod
    def recipe_for(cls, options: Mapping[str, Any]) -> Recipe:
        """Return the schedule's recipe; a short one at small scale."""
        name = options.get("schedule") or cls.usual_schedule
        if options.get("scale", "small") == "paper":
            return paper_recipe(name, options.get("batch"), cls.revision)
        training = cls.small_training(options.get("backbone", BACKBONES[0]))
        dataset = options.get("dataset", "shapes")
        usual = training.size if dataset == "shapes" else _OTHERS_TRAINED
        images = options.get("size") or _TRAINED.get(dataset, usual)
        batch = options.get("batch")
        return small_recipe(name, training, images, batch, cls.revision)

    augmentation: ClassVar[str] = "shorter sides as above, flips"
    """In words, for those who compare recipes."""

    @classmethod
    def reading_processes(cls, options: Mapping[str, Any]) -> int:
        """Return how many processes read the images."""
        large = options.get("scale") == "paper"
        return wanted_workers(options.get("workers"), large=large)

    @classmethod
    def small_training(cls, backbone: str) -> SmallTraining:
        """Return the small version's training settings."""
        return cls.small

    def __init__(
        self,
        seed: int,
        *,
        split: str = "test",
        dataset: str = "shapes",
        backbone: str = "resnet50",
        scale: str = "small",
        schedule: str | None = None,
        size: int | None = None,
        test_size: int | None = None,
        image_size: int | None = None,
        batch: int | None = None,
        weights: str = IMAGENET,
        workers: int | None = None,
    ) -> None:
        super().__init__(seed)
        self.is_small = check_choice("scale", scale, SCALES) == "small"
        self.backbone = check_choice("backbone", backbone, BACKBONES)
        self.schedule = schedule_of(schedule or self.usual_schedule)
        self.schedule_name = schedule or self.usual_schedule
        self.weights = _find_weights(weights, self.backbone, scale)
        self.workers = count_workers(workers, large=not self.is_small)
        self.training = self.small_training(self.backbone)
        usual = self.training.batch if self.is_small else self.schedule.batch
        self.batch = check_count("batch", usual if batch is None else batch)
        if image_size is not None:
            check_count("image_size", image_size, 32)
        self.image_size = image_size
        self.dataset = dataset
        if dataset == "shapes" and size is None:
            size = self.training.size
        self.side = image_size or _SIDES.get(dataset, _OTHER_SIDE)
        # The nuclei images are small enough already and stay on disk.
        own = dataset == "nuclei" and self.side == _SIDES[dataset]
        self.data = load_detection(
            dataset,
            seed,
            size=size,
            test_size=test_size,
            longest_side=self.side if self.is_small and not own else None,
            validation=check_split(split),
            masks=self.masks,
        )
        if self.masks and not self.data.has_masks:
            raise UsageError(
                f"{dataset} has boxes without masks, but this task needs masks."
            )
        if self.data.problems:
            warnings.warn(" ".join(self.data.problems), stacklevel=2)
        self.crop = _CROPS.get(dataset) if self.is_small else None

    @abstractmethod
    def detector(self) -> nn.Module:
        """Make the network, called like torchvision's detectors."""

    def model(self) -> nn.Module:
        """Make the network; its losses are divided by the boxes of all workers."""
        model = self.detector()
        parts: list[Any] = [m for m in model.modules() if hasattr(m, "shard")]
        for part in parts:
            part.shard = self.shard
        return model

    def paper_options(self) -> dict[str, Any]:
        """Return the arguments that all the paper's networks share."""
        sides = (self.image_size,) if self.image_size else self.schedule.shorter_sides
        return {
            "backbone": self.backbone,
            "pretrained": self.weights is not None,
            "shorter_sides": sides,
        }

    def initial_weights(self) -> tuple[Mapping[str, Tensor], str]:
        """Return the backbone's weights, if any, and a description of the start."""
        if self.weights is None:
            return {}, _FROM_SCRATCH
        with torch.device("meta"):
            model = self.detector()
        return pretrained_weights(model, self.weights), _origin(self.weights)

    @classmethod
    def start_for(cls, options: Mapping[str, Any]) -> str:
        """Describe the backbone's weights; refuse if they are missing."""
        chosen = str(options.get("weights", IMAGENET))
        backbone = str(options.get("backbone", BACKBONES[0]))
        weights = _find_weights(chosen, backbone, options.get("scale", "small"))
        return _FROM_SCRATCH if weights is None else _origin(weights)

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Make AdamW at small scale and for Swin-T, otherwise SGD, as in the paper.

        With AdamW, biases, norms and relative positions get no weight decay.
        """
        by_adamw = self.is_small or self.backbone == "swin-t"
        groups = parameter_groups(model, decay_all=not by_adamw)
        if not by_adamw:
            return SGD(groups, lr=0.02, momentum=0.9, weight_decay=1e-4)
        lr = self.training.learning_rate if self.is_small else 1e-4
        return AdamW(groups, lr=lr, weight_decay=0.05)

    def train_loader(self, epoch: int) -> Loader:
        """Shuffle the images and flip half of them."""
        return self._flipped.epoch(epoch)

    @cached_property
    def _flipped(self) -> DetectionLoader:
        return self.make_loader(self.data.train, flipping(self.crop))

    def make_loader(self, examples: Examples, transform: Any) -> DetectionLoader:
        """Return batches of these examples, for any number of epochs."""
        return DetectionLoader(
            examples,
            transform,
            masks=self.masks,
            batch=self.batch,
            repeats=self.schedule.repeats,
            seed=self.seed,
            workers=self.workers,
            broken=self.broken,
        )

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the sum of the detector's losses."""
        images, targets = batch
        losses: dict[str, Tensor] = model(images, targets)
        return torch.stack(list(losses.values())).sum()

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Measure average precision."""
        batch = 20 if self.is_small else 4
        examples = EvaluationExamples(
            self.data.test,
            batch,
            workers=self.workers,
            broken=self.broken,
            shard=self.shard,
        )
        found = measure.detect(model, examples.batches())
        pairs = ((detected, truth) for _, detected, truth in found)
        return measure.average_precision(pairs, masks=self.masks, shard=self.shard)

    def shorten_evaluation(self, examples: int) -> int:
        """Keep the first test images, and read them now."""
        count = min(examples, len(self.data.test))
        few = [self.data.test[index] for index in range(count)]
        self.data = replace(self.data, test=few)
        return count

    def trivial(self) -> Mapping[str, float]:
        """Measure a detector that predicts each category's mean box in every image."""
        mean = _mean_boxes(self.data.train, self.data.classes)
        pairs = _everywhere(mean, self.data.test, masks=self.masks)
        return measure.average_precision(pairs, masks=self.masks)

    def samples(self, model: nn.Module) -> Mapping[str, Tensor]:
        """Draw the ground truth and the detections for the first test images."""
        count = min(_SHOWN, len(self.data.test))
        chosen = [self.data.test[index] for index in range(count)]
        batch = [image for image, _ in chosen], [truth for _, truth in chosen]
        found = list(measure.detect(model, [batch]))
        names = self.data.categories
        truths = [
            {key: v for key, v in truth.items() if self.masks or key != "masks"}
            for _, _, truth in found
        ]
        return {
            f"truth{pictures.legend(names)}": pictures.side_by_side(
                pictures.draw(image, truth, names)
                for (image, _, _), truth in zip(found, truths, strict=True)
            ),
            "detected": pictures.side_by_side(
                pictures.draw(image, detected, names, self.drawn_from)
                for image, detected, _ in found
            ),
        }


def _find_weights(weights: str, backbone: str, scale: str) -> Path | None:
    """Return the file of the backbone's weights; None to train from scratch."""
    if weights == NONE or (weights == IMAGENET and scale == "small"):
        return None
    if scale == "small":
        raise UsageError("weights needs scale=paper.")
    if weights == IMAGENET:
        return required_weights(backbone)
    path = find_weights_file(weights)
    if path is None:
        raise UsageError(
            f"weights must be {IMAGENET}, {NONE} or the path of a file, got "
            f"{weights!r}."
        )
    return path


def _origin(weights: Path) -> str:
    return described_file("pre-trained weights of the backbone", weights)


def _mean_boxes(examples: Examples, classes: int) -> Target:
    """Average the boxes of each category, relative to the image size."""
    sums, counts = torch.zeros(classes, 4), torch.zeros(classes)
    for index in range(min(len(examples), _COUNTED)):
        image, target = examples[index]
        height, width = image.shape[-2:]
        shares = target["boxes"] / torch.tensor([width, height, width, height])
        sums.index_add_(0, target["labels"] - 1, shares)
        counts.index_add_(0, target["labels"] - 1, torch.ones(len(shares)))
    there = counts > 0
    return {
        "boxes": sums[there] / counts[there, None],
        "labels": torch.where(there)[0] + 1,
        "scores": counts[there] / counts.sum(),
    }


def _everywhere(
    mean: Target, examples: Examples, *, masks: bool
) -> Iterator[tuple[Target, Target]]:
    for index in range(len(examples)):
        image, truth = examples[index]
        height, width = image.shape[-2:]
        boxes = mean["boxes"] * torch.tensor([width, height, width, height])
        found = {**mean, "boxes": boxes}
        if masks:
            filled = torch.zeros(len(boxes), height, width, dtype=torch.uint8)
            for mask, (x1, y1, x2, y2) in zip(
                filled, boxes.int().tolist(), strict=True
            ):
                mask[y1:y2, x1:x2] = 1
            found["masks"] = filled
        yield found, truth
