"""Image classification with every network and training procedure of the paper."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout
from torch.optim import Optimizer

from switch_ema._checks import check_count, check_range
from switch_ema.analysis.calibration.measures import (
    Predictions,
    calibration_error,
    reliability,
)
from switch_ema.bench.errors import UsageError
from switch_ema.bench.optimizers.catalog import create_optimizer, optimizer_info
from switch_ema.bench.spec import parse_spec
from switch_ema.bench.task import Loader, Metric, Recipe
from switch_ema.zoo.data.sample_loader import count_workers, wanted_workers
from switch_ema.zoo.data.selection import split_and_redraw, subset
from switch_ema.zoo.data.vision import (
    DATASETS,
    TRAINING_IMAGES,
    VisionSet,
    load_vision,
)
from switch_ema.zoo.models.catalog import NETWORKS, create_network
from switch_ema.zoo.procedures import (
    PROCEDURES,
    TrainingProcedure,
    classification_loss,
    create_procedure,
    default_procedure,
    fitted,
)
from switch_ema.zoo.procedures.augment import resize_and_crop
from switch_ema.zoo.procedures.catalog import CIFAR
from switch_ema.zoo.procedures.small import IMAGES, RESOLUTIONS
from switch_ema.zoo.tasks.image_batches import EvaluationImages, ImageLoader
from switch_ema.zoo.tasks.metrics import (
    ECE,
    TRAINING_LOSS,
    Classifier,
    classified,
)

DEFAULTS = {"network": "resnet18", "dataset": "digits", "scale": "small"}


STACKS = {"resnet18": 8, "resnet50": 8, "deit-t": 16, "deit-s": 8}
"""Fastest number of small networks to train at once, by network."""

FITTED = "fitted"


class Classification(Classifier):
    """Image classification with the paper's networks and procedures, small or full.

    Args:
        seed: Random seed.
        split: Evaluate on ``test`` images or on a held-out fifth of the training images
            (``validation``).
        network: One of the paper's networks.
        dataset: ``digits``, ``cifar10``, ``cifar100``, ``stl10`` or ``imagenet``.
        scale: ``small`` trains a small version of the network on a few images in
            seconds, with the procedure's optimizer; ``fitted`` trains it until it fits
            its images, with decays that keep the same share at a switch as the
            paper's; ``paper`` runs everything at full size.
        procedure: Augmentation, optimizer and schedule; default: the paper's for the
            network.
        augment: Whether to use the procedure's augmentation.
        size: Training images; default: all, or 1,000 at the smaller scales.
        test_size: Test images, likewise.
        image_size: Height and width, instead of the procedure's.
        noise: Share of the training labels to redraw at random.
        batch: Images per forward pass; gradients accumulate up to the procedure's
            batch size, the default.
        folder: Folder of ``imagenet``, with train/ and val/.
        workers: Processes that read and augment images; default: at the paper's scale
            one per core, up to 16.
        download: Whether torchvision may download the data.
    """

    networks = tuple(NETWORKS)
    procedures = tuple(PROCEDURES)
    uses_all_parameters = True
    divides_evaluation = True

    @classmethod
    def recipe_for(cls, options: Mapping[str, Any]) -> Recipe:
        """Return the procedure's settings of the training loop."""
        network, dataset, scale = (
            str(options.get(key, default)) for key, default in DEFAULTS.items()
        )
        name, augment = options.get("procedure"), options.get("augment", True)
        procedure = _find_procedure(network, dataset, scale, name, bool(augment))
        images = options.get("size") or (
            TRAINING_IMAGES[dataset] if scale == "paper" else _images(network, scale)
        )
        steps = max(images // procedure.batch_size, 3)
        if scale == FITTED:
            name = name or default_procedure(network, dataset)
            procedure = replace(procedure, **_fitted_decays(name, network, steps))
        # With (1 - d) * steps = 1.5 a switch keeps about half of an epoch's progress.
        two_thirds = round(1 - 1.5 / steps, 5)
        methods: dict[str, dict[str, Any]] = {
            "ema": {"decay": procedure.ema_decay or two_thirds},
            "switch-ema": {"decay": procedure.switch_ema_decay or two_thirds},
        }
        if scale != "paper":
            # A fifth of an epoch, as the paper's 100 steps are on CIFAR-100.
            methods["lookahead"] = {"k": max(steps // 5, 1)}
        batch = options.get("batch") or procedure.batch_size
        return Recipe(
            epochs=procedure.epochs,
            schedule=procedure.schedule,
            warmup_epochs=procedure.warmup_epochs,
            clip=procedure.clip,
            accumulate=max(procedure.batch_size // batch, 1),
            methods=methods,
            evaluate_every=fitted.EVALUATE_EVERY if scale == FITTED else 1,
            revision=0 if procedure.decay_all else 1,  # 1: tensors without weight decay
        )

    @classmethod
    def reading_processes(cls, options: Mapping[str, Any]) -> int:
        """Return how many processes read the images."""
        large = options.get("scale") == "paper"
        return wanted_workers(options.get("workers"), large=large)

    @classmethod
    def metrics_for(cls, options: Mapping[str, Any]) -> tuple[Metric, ...]:
        """Add calibration and, where a network fits its images, the training loss.

        The small scale has neither, to match results stored earlier.
        """
        scale = options.get("scale", DEFAULTS["scale"])
        ece = () if scale == "small" else (ECE,)
        return (*cls.metrics, *ece, *((TRAINING_LOSS,) if scale == FITTED else ()))

    @classmethod
    def seeds_at_once(cls, options: Mapping[str, Any]) -> int:
        """Return how many small networks to train at once, as measured."""
        network, dataset, scale = (
            str(options.get(key, default)) for key, default in DEFAULTS.items()
        )
        procedure = _find_procedure(network, dataset, scale, options.get("procedure"))
        optimizer = parse_spec(procedure.optimizer).name
        if not optimizer_info(optimizer).elementwise:
            return 1
        if scale == FITTED and not options.get("image_size"):
            return fitted.STACKS.get(network, 1)
        is_small = scale == "small" and dataset == "digits"
        return STACKS.get(network, 1) if is_small else 1

    def __init__(
        self,
        seed: int,
        *,
        split: str = "test",
        network: str = DEFAULTS["network"],
        dataset: str = DEFAULTS["dataset"],
        scale: str = DEFAULTS["scale"],
        procedure: str | None = None,
        augment: bool = True,
        size: int | None = None,
        test_size: int | None = None,
        image_size: int | None = None,
        noise: float = 0.0,
        batch: int | None = None,
        folder: str | None = None,
        workers: int | None = None,
        download: bool = False,
    ) -> None:
        super().__init__(seed)
        self.procedure = _find_procedure(network, dataset, scale, procedure, augment)
        self.network, self.scale = NETWORKS[network], scale
        self.metrics = self.metrics_for({"scale": scale})
        self.batch = _check_batch(batch, self.procedure)
        self.workers = count_workers(workers, large=scale == "paper")
        check_range("noise", noise, 0, 1)
        data = load_vision(dataset, seed, folder=folder, download=download)
        if scale != "paper":
            tested = fitted.TEST_IMAGES if scale == FITTED else IMAGES
            most = min(_images(network, scale), len(data.y_train))
            size = most if size is None else size
            test_size = (
                min(tested, len(data.y_test)) if test_size is None else test_size
            )
        data = subset(data, size, test_size, seed)
        if scale == FITTED:
            data = _at_most(data, image_size or fitted.SIDE)
        self.data = split_and_redraw(data, noise, seed, split=split)
        self.y_eval = self.data.y_test
        self.train_resolution, self.test_resolution = self._resolutions(image_size)

    @property
    def x(self) -> Any:
        """The training images."""
        return self.data.x_train

    @property
    def x_eval(self) -> Any:
        """The evaluation images."""
        return self.data.x_test

    def _resolutions(self, image_size: int | None) -> tuple[int, int]:
        """Return the image size in training and in tests."""
        images, procedure = self.data.x_train, self.procedure
        if image_size is not None:
            check_count("image_size", image_size)
        own = images.shape[-1] if isinstance(images, Tensor) else 224
        if self.scale != "paper":
            least, most = RESOLUTIONS
            own = min(max(own, least), most)
        train = image_size or procedure.train_resolution or own
        test = image_size or procedure.test_resolution or own
        # Networks of patches have one size, that of the tests; DeiT can resample it.
        patched = self.network.family in ("transformer", "mlp")
        is_fixed = patched and not (self.scale == "paper" and self._is_deit)
        return test if is_fixed else train, test

    @property
    def _is_deit(self) -> bool:
        return self.network.name.startswith("deit")

    def model(self) -> nn.Module:
        """Make the network, with the procedure's dropout and stochastic depth."""
        model = create_network(
            self.network.name,
            num_classes=self.data.classes,
            image_size=self.test_resolution if self._is_deit else self.train_resolution,
            scale="paper" if self.scale == "paper" else "small",
            in_channels=len(self.data.mean),
            drop_path=self.procedure.stochastic_depth if self.network.residual else 0.0,
            resizes=self._is_deit and self.train_resolution != self.test_resolution,
        )
        if self.procedure.dropout:
            _drop_inputs_of_classifier(model, self.procedure.dropout)
        return model

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Make the procedure's optimizer."""
        return create_optimizer(
            parse_spec(self.procedure.optimizer),
            model,
            decay_all=self.procedure.decay_all,
        )

    def train_loader(self, epoch: int) -> Loader:
        """Shuffle the images and augment them as the procedure says."""
        return self._training_images.epoch(epoch)

    @cached_property
    def _training_images(self) -> ImageLoader:
        return ImageLoader(
            self.data,
            self.procedure,
            resolution=self.train_resolution,
            batch=self.batch,
            seed=self.seed,
            workers=self.workers,
            broken=self.broken,
        )

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the procedure's loss."""
        x, y = batch
        return classification_loss(model(x), y, self.procedure)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Measure accuracy, likelihood and the scale's other metrics."""
        outputs, labels = self.predictions(model)
        values = classified(outputs, labels)
        if ECE in self.metrics:
            values["ece"] = _calibration(outputs, labels)
        if TRAINING_LOSS in self.metrics:
            trained = replace(self.data, x_test=self.data.x_train)
            fit, read = self._centres(trained).predict(model, self.shard)
            labels = self.data.y_train[read]
            values["training loss"] = cross_entropy(fit, labels).item()
        return values

    def shorten_evaluation(self, examples: int) -> int:
        """Keep the first evaluation images."""
        few = torch.arange(min(examples, len(self.y_eval)))
        x, y = self.data.x_test[few], self.data.y_test[few]
        self.data, self.y_eval = replace(self.data, x_test=x, y_test=y), y
        return len(y)

    def predictions(self, model: nn.Module) -> tuple[Tensor, Tensor]:
        """Return the logits and labels of the readable evaluation images."""
        outputs, read = self._evaluation_images.predict(model, self.shard)
        return outputs, self.y_eval[read]

    def evaluation_batches(self) -> Iterable[Tensor]:
        """Return centre crops of the evaluation images."""
        return self._evaluation_images

    @cached_property
    def _evaluation_images(self) -> EvaluationImages:
        return self._centres(self.data)

    def _centres(self, data: VisionSet) -> EvaluationImages:
        return EvaluationImages(
            data,
            self.procedure,
            resolution=self.test_resolution,
            batch=250 * self.shard.ranks,
            workers=self.workers,
            broken=self.broken,
        )


def _find_procedure(
    network: str, dataset: str, scale: str, name: str | None, augment: bool = True
) -> TrainingProcedure:
    """Return the given procedure, or the paper's by default."""
    if dataset not in DATASETS:
        raise UsageError(
            f"dataset must be one of {', '.join(DATASETS)}, got {dataset!r}."
        )
    name = name or default_procedure(network, dataset)
    return create_procedure(name, network=network, scale=scale, augment=augment)


def _calibration(outputs: Tensor, labels: Tensor) -> float:
    """Return the expected calibration error in percent; NaN for non-finite outputs."""
    if not outputs.isfinite().all():
        return math.nan
    return 100 * calibration_error(
        reliability(Predictions.from_logits(outputs, labels))
    )


def _images(network: str, scale: str) -> int:
    """Return the number of training images of a small network."""
    return fitted.images_for(network) if scale == FITTED else IMAGES


def _fitted_decays(name: str, network: str, steps: int) -> dict[str, Any]:
    """Return decays at which a switch keeps the same share as in the paper."""
    paper = create_procedure(name, network=network)
    images = TRAINING_IMAGES[CIFAR if name == CIFAR else "imagenet"]
    return {
        key: fitted.decay_in_epochs(
            getattr(paper, key), images / paper.batch_size, steps
        )
        for key in ("ema_decay", "switch_ema_decay")
    }


def _at_most(data: VisionSet, side: int) -> VisionSet:
    """Shrink in-memory images once instead of in every batch."""
    if not isinstance(data.x_train, Tensor) or data.x_train.shape[-1] <= side:
        return data
    train, test = (
        resize_and_crop(images, side, 1.0) for images in (data.x_train, data.x_test)
    )
    return replace(data, x_train=train, x_test=test)


def _check_batch(batch: int | None, procedure: TrainingProcedure) -> int:
    """Return the micro-batch size; it must divide the procedure's batch size."""
    if batch is None:
        return procedure.batch_size
    check_count("batch", batch)
    if procedure.batch_size % batch or (procedure.mixes and batch % 2):
        even = "even and " if procedure.mixes else ""
        raise UsageError(
            f"batch must be {even}a divisor of the procedure's {procedure.batch_size}, "
            f"got {batch}."
        )
    return batch


def _drop_inputs_of_classifier(model: nn.Module, share: float) -> None:
    """Add dropout before the last linear layer without renaming its weights."""
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    linear[-1].register_forward_pre_hook(partial(_dropped, share=share))


def _dropped(module: nn.Module, inputs: tuple[Tensor], share: float) -> tuple[Tensor]:
    return (dropout(inputs[0], share, module.training),)
