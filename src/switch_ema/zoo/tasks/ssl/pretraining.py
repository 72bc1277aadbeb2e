"""The base of self-supervised tasks: images, recipe, optimizer and evaluation."""

import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate
from torch.optim import AdamW, Optimizer

from switch_ema._checks import check_choice, check_count
from switch_ema.averaging.methods.swa import swa_budget
from switch_ema.averaging.model.names import unwrap
from switch_ema.bench.errors import UsageError
from switch_ema.bench.optimizers.groups import parameter_groups
from switch_ema.bench.task import CONTROL_EPOCHS, Loader, Metric, Recipe, Shard, Task
from switch_ema.zoo.data.sample_loader import count_workers, wanted_workers
from switch_ema.zoo.data.vision import ImageFiles, Images
from switch_ema.zoo.models.catalog import SCALES, create_network
from switch_ema.zoo.tasks.image_batches import EvaluationImages
from switch_ema.zoo.tasks.metrics import ACCURACY, one_class, predict
from switch_ema.zoo.tasks.ssl.evaluation import (
    PROCEDURE,
    PROTOCOLS,
    Labelled,
    LinearProbe,
    fine_tune,
    fine_tune_by_procedure,
    nearest_neighbours,
)
from switch_ema.zoo.tasks.ssl.images import (
    COLOURED,
    DATASETS,
    load_for_pretraining,
)
from switch_ema.zoo.tasks.ssl.settings import PaperSettings, paper_optimizer

_SIDES = {"small": 32, "paper": 224}
"""Height and width of images read from files, by scale."""
FINE_TUNED = {"small": 3, "paper": 100}
"""Epochs of fine-tuning, by scale."""
_AT_ONCE = 250
"""Images in memory that are encoded at once."""
NEIGHBOURS, VOTED = 5000, 10_000
"""Maximum number of training and of test images for k-NN."""


class Pretraining(Task):
    """Pre-trains an encoder without labels, then evaluates it with labels.

    ``accuracy`` follows the protocol: ``linear`` fits a linear classifier to the
    features of labelled training images; ``fine-tune`` trains a copy of the encoder
    with layer decay 0.65 (for a few epochs at small scale, since it runs after every
    epoch). ``knn`` is the accuracy of a nearest-neighbour classifier. Labels are used
    for evaluation only.

    Args:
        seed: Random seed.
        split: Evaluate on ``test`` images or on a held-out fifth of the training images
            (``validation``).
        dataset: The images; ``imagenet`` is any folder with its layout, whose images
            are read on demand.
        network: The encoder; default: the method's usual one.
        scale: ``small`` or ``paper``.
        size: Training images; default: all, or 2,000 at small scale.
        image_size: Height and width, instead of the scale's.
        batch: Images per step. At scale ``paper``, images per forward pass: gradients
            accumulate up to the paper's batch, with the losses of the whole batch. If
            it is larger than the paper's, learning rates grow in proportion.
        protocol: ``linear`` or ``fine-tune``.
        protocol_every: Epochs between runs of the protocol. It also runs once after a
            quarter more: if this is the length of the training, SWA ends there.
        folder: Folder of ``imagenet``, with train/ and val/.
        workers: Processes that read large images; default: one per core, up to 16.
        download: Whether torchvision may download the data.
    """

    metrics = (ACCURACY, Metric(name="knn", higher_is_better=True, unit="%"))
    datasets: ClassVar[tuple[str, ...]] = DATASETS
    networks: ClassVar[tuple[str, ...]]
    """Allowed networks; the first is the default."""
    paper: ClassVar[PaperSettings]
    small_lr: ClassVar[float] = 2e-3
    divides_evaluation = True

    @classmethod
    def recipe_for(cls, options: Mapping[str, Any]) -> Recipe:
        """Return the paper's settings at its scale."""
        if options.get("scale", "small") != "paper":
            return cls.recipe
        batch = cls.paper.batch
        return Recipe(
            epochs=1000,
            schedule="cosine",
            warmup_epochs=cls.paper.warmup_epochs,
            clip=cls.paper.clip,
            accumulate=max(batch // (options.get("batch") or batch), 1),
            methods=cls.paper.methods,
            revision=1,  # MoCo v2 decays all tensors, the others fewer
        )

    @classmethod
    def reading_processes(cls, options: Mapping[str, Any]) -> int:
        """Return how many processes read the images."""
        large = options.get("scale") == "paper" or options.get("dataset") == "imagenet"
        return wanted_workers(options.get("workers"), large=large)

    def __init__(
        self,
        seed: int,
        *,
        split: str = "test",
        dataset: str = "digits",
        network: str | None = None,
        scale: str = "small",
        size: int | None = None,
        image_size: int | None = None,
        batch: int | None = None,
        protocol: str = "linear",
        protocol_every: int = 1,
        folder: str | None = None,
        workers: int | None = None,
        download: bool = False,
    ) -> None:
        super().__init__(seed)
        self.dataset = check_choice("dataset", dataset, DATASETS)
        self.scale = check_choice("scale", scale, SCALES)
        if scale == "paper":
            check_choice("dataset at scale 'paper'", dataset, COLOURED)
        self.network = check_choice(
            "network", network or self.networks[0], self.networks
        )
        self.protocol = check_choice("protocol", protocol, PROTOCOLS)
        self.protocol_every = check_count("protocol_every", protocol_every)
        usual = 64 if scale == "small" else self.paper.batch
        self.batch = check_count("batch", usual if batch is None else batch, 2)
        if scale == "paper" and self.batch < usual and usual % self.batch:
            raise UsageError(
                f"batch must be a divisor of the paper's {usual}, got {batch}."
            )
        large = scale == "paper" or dataset == "imagenet"
        self.workers = count_workers(workers, large=large)
        self.data = load_for_pretraining(
            dataset,
            seed,
            scale=scale,
            size=size,
            folder=folder,
            download=download,
            split=split,
        )
        self.channels = len(self.data.mean)
        self.image_size = check_count("image_size", image_size or self._own_side(), 8)
        self._epoch: int | None = None
        self._few: int | None = None
        """Labelled images per evaluation, of training and of tests; None: all."""

    @property
    def x(self) -> Images:
        """The training images."""
        return self.data.x_train

    @property
    def x_eval(self) -> Images:
        """The evaluation images."""
        return self.data.x_test

    @property
    def one_by_one(self) -> bool:
        """Whether images are so large that workers process them one by one."""
        return self.scale == "paper" or isinstance(self.x, ImageFiles)

    def _own_side(self) -> int:
        if self.scale == "paper" or isinstance(self.x, ImageFiles):
            return _SIDES[self.scale]
        return int(self.x.shape[-1])

    def encoder(self, *, drop_path: float | None = None) -> nn.Module:
        """Make the encoder with fresh weights; None: no stochastic depth."""
        return create_encoder(
            self.network,
            scale=self.scale,
            channels=self.channels,
            image_size=self.image_size,
            pool=self.pool(),
            drop_path=drop_path or 0.0,
        )

    def pool(self) -> str | None:
        """Return how to pool a transformer's tokens; None for its default."""
        return None

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Make the method's optimizer, or AdamW at small scale."""
        if self.scale == "paper":
            return paper_optimizer(self.paper, model, max(self.batch, self.paper.batch))
        groups = parameter_groups(model, decay_all=False)
        return AdamW(groups, lr=self.small_lr, weight_decay=1e-2)

    def train_loader(self, epoch: int) -> Loader:
        """Shuffle the images and transform them for the method."""
        self._epoch = epoch
        return self.batches(epoch)

    @abstractmethod
    def batches(self, epoch: int) -> Loader:
        """Return the batches of an epoch."""

    def prepare(self, images: Tensor) -> Tensor:
        """Resize images in [0, 1] and normalise them."""
        if images.shape[-1] != self.image_size:
            size = [self.image_size] * 2
            images = interpolate(images, size, mode="bilinear", antialias=True)
        return self.data.normalise(images * 255)

    @abstractmethod
    def encoder_of(self, model: nn.Module) -> nn.Module:
        """Return the part of the unwrapped model to keep after pre-training."""

    def trivial(self) -> dict[str, dict[str, float]]:
        """Measure the most frequent class of the test labels."""
        return one_class(self.data.y_test)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Measure how well the encoder's features classify.

        ``accuracy`` is NaN after epochs in which the protocol is not due.
        """
        encoder, data = self.encoder_of(unwrap(model)), self.data
        shown, tested = self._labelled()
        due, linear = self._protocol_is_due(), self.protocol == "linear"
        few, tested = shown[:NEIGHBOURS], tested if due and linear else tested[:VOTED]
        features = Labelled(
            *self._features(encoder, data.x_train[few], data.y_train[few]),
            *self._features(encoder, data.x_test[tested], data.y_test[tested]),
            data.classes,
        )
        accuracy, first = math.nan, self.shard.from_first
        if due and linear:
            probe = self._probe(encoder, shown)
            accuracy = first(lambda: features.accuracy(probe.predict(features.x_test)))
        elif due:
            accuracy = self._fine_tune(encoder)
        near = features.first(NEIGHBOURS, VOTED)
        return {"accuracy": accuracy, "knn": first(lambda: nearest_neighbours(near))}

    def shorten_evaluation(self, examples: int) -> int:
        """Measure features on a few images; fine-tune one epoch on as many."""
        self._few = examples
        return sum(map(len, self._labelled()))

    def _labelled(self) -> tuple[Tensor, Tensor]:
        """Return the indices of labelled training images and of test images."""
        shown = torch.nonzero(self.data.y_train >= 0).flatten()
        return shown[: self._few], torch.arange(len(self.data.y_test))[: self._few]

    def _features(
        self, encoder: nn.Module, images: Images, labels: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the features and labels of the readable images.

        Workers divide the images; the first one gets all features.
        """
        shard = self.shard
        if isinstance(images, ImageFiles):
            shown = self._shown(images)
            features, read = shown.predict(encoder, shard, to_all=False)
            return features, labels[read]
        if len(images) < shard.ranks:  # too few to divide
            return predict(encoder, self._prepared(images)), labels
        own = images[shard.share(len(images))]
        return shard.collect(predict(encoder, self._prepared(own))), labels

    def _probe(self, encoder: nn.Module, shown: Tensor) -> LinearProbe:
        """Fit a linear probe on labelled training images, of which workers take parts.

        Features are added up batch by batch, and never in memory all at once.
        """
        images, labels = self.data.x_train[shown], self.data.y_train[shown]
        # Too few to divide: every worker takes all of them.
        shard = Shard() if len(images) < self.shard.ranks else self.shard
        probe = LinearProbe(width_of(encoder), self.data.classes)
        if isinstance(images, ImageFiles):
            for features, read in self._shown(images).outputs(encoder, shard):
                probe.add(features, labels[read])
        else:
            own = shard.share(len(images))
            pairs = zip(
                self._prepared(images[own]),
                torch.split(labels[own], _AT_ONCE),
                strict=True,
            )
            for prepared, classes in pairs:
                probe.add(predict(encoder, [prepared]), classes)
        probe.join(shard)
        return probe

    def _protocol_is_due(self) -> bool:
        """Whether the protocol is due after the last epoch; always before the first."""
        if self._epoch is None:
            return True
        done = self._epoch % CONTROL_EPOCHS + 1
        # SWA's training ends a quarter later than that of the other methods.
        is_end_of_swa = done == swa_budget(self.protocol_every)[0]
        return done % self.protocol_every == 0 or is_end_of_swa

    def _fine_tune(self, encoder: nn.Module) -> float:
        """Fine-tune on all labelled images, as in the paper or for a few epochs."""
        shown, tested = self._labelled()
        x, y = self.data.x_train[shown], self.data.y_train[shown]
        x_test, y_test = self.data.x_test[tested], self.data.y_test[tested]
        data = replace(self.data, x_train=x, y_train=y, x_test=x_test, y_test=y_test)
        if self.one_by_one:
            with torch.random.fork_rng():
                depth = PROCEDURE.stochastic_depth
                network = self.copy_to_tune(encoder, drop_path=depth)
            return fine_tune_by_procedure(
                network.to(next(encoder.parameters()).device),
                data,
                epochs=FINE_TUNED[self.scale] if self._few is None else 1,
                resolution=self.image_size,
                batch=min(self.batch, PROCEDURE.batch_size),
                seed=self.seed,
                workers=self.workers,
                broken=self.broken,
                shard=self.shard,
            )
        assert isinstance(x, Tensor) and isinstance(x_test, Tensor)
        prepared, prepared_test = (
            torch.cat(list(self._prepared(images))) for images in (x, x_test)
        )
        images = Labelled(prepared, y, prepared_test, y_test, data.classes)
        # Every worker does the same: on GPUs, batch norm may wait for all of them.
        return fine_tune(encoder, images, epochs=FINE_TUNED["small"], seed=self.seed)

    def copy_to_tune(self, encoder: nn.Module, *, drop_path: float) -> nn.Module:
        """Make a copy with the same weights and other stochastic depth."""
        network = self.encoder(drop_path=drop_path)
        network.load_state_dict(encoder.state_dict())
        return network

    def _prepared(self, images: Tensor) -> Iterable[Tensor]:
        parts = torch.split(images, _AT_ONCE)
        return (self.prepare(part.float() / 255) for part in parts)

    def _shown(self, images: ImageFiles) -> EvaluationImages:
        shown = replace(self.data, x_test=images, y_test=torch.zeros(len(images)))
        return EvaluationImages(
            shown,
            PROCEDURE,
            resolution=self.image_size,
            batch=250 * self.shard.ranks,
            workers=self.workers,
            broken=self.broken,
        )


def create_encoder(
    network: str,
    *,
    scale: str,
    channels: int,
    image_size: int,
    pool: str | None = None,
    drop_path: float = 0.0,
) -> nn.Module:
    """Make a network that returns one vector of ``num_features`` per image.

    Args:
        network: A name in ``NETWORKS`` of a network from timm.
        scale: ``small`` or ``paper``.
        channels: Channels of the images.
        image_size: Height and width of the images.
        pool: How to pool a vision transformer's tokens: ``token`` or ``avg``; None for
            the network's default.
        drop_path: Stochastic depth in [0, 1).
    """
    model = create_network(
        network,
        num_classes=1,
        image_size=image_size,
        scale=scale,
        in_channels=channels,
        drop_path=drop_path,
        # With weights scaled to the width, a probe of random features already reaches
        # 90% on digits, and would show little of what was learned.
        usual_weights=True,
    )
    reset = getattr(model, "reset_classifier", None)
    if reset is None:
        raise ValueError(f"network must have a classifier to remove, got {network!r}.")
    reset(0, **({} if pool is None else {"global_pool": pool}))
    return model


def xavier_(vit: nn.Module, *, separate: bool) -> None:
    """Initialise the linear layers and the patch projection as MAE or MoCo v3 do.

    Args:
        vit: A vision transformer of timm.
        separate: Whether queries, keys and values count as layers of their own.
    """
    for name, layer in vit.named_modules():
        if isinstance(layer, nn.Linear):
            outputs, inputs = layer.weight.shape
            parts = 3 if separate and name.endswith("qkv") else 1
            bound = math.sqrt(6 / (outputs // parts + inputs))
            nn.init.uniform_(layer.weight, -bound, bound)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        elif isinstance(layer, nn.Conv2d):
            nn.init.xavier_uniform_(layer.weight.data.flatten(1))


def width_of(encoder: nn.Module) -> int:
    """Return the number of features of an encoder."""
    return int(getattr(encoder, "num_features"))  # noqa: B009 - timm's, untyped
