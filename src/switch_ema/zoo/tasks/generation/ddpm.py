"""Image generation with DDPM, sampled by DDIM, as in Table 8 of the paper."""

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.optim import Adam, Optimizer

from switch_ema._checks import check_count
from switch_ema.bench.errors import UsageError
from switch_ema.bench.task import Batches, Loader, Metric, Recipe, Shard, Task
from switch_ema.zoo.data import sources
from switch_ema.zoo.data.byte_images import ByteImages, FloatRows
from switch_ema.zoo.data.celeba import load_celeba
from switch_ema.zoo.data.images import load_images
from switch_ema.zoo.data.splits import choose_split, stream
from switch_ema.zoo.models.denoiser import create_denoiser
from switch_ema.zoo.models.pretrained import find_weights_file
from switch_ema.zoo.procedures.augment import mirror
from switch_ema.zoo.tasks.generation.frechet import (
    FrechetDistance,
    classifier_features,
    pixel_gaussian,
)
from switch_ema.zoo.tasks.generation.settings import find_settings

_TIMESTEPS = 1000
"""Diffusion steps; the variance grows linearly from 0.0001 to 0.02."""
DEFAULTS = {"dataset": "digits", "scale": "small"}
_CLASSIFIERS = {"digits": "digit", "mnist": "MNIST", "cifar10": "CIFAR-10"}
LOSS = Metric(name="denoising loss", higher_is_better=False)
SHOWN = 16
"""Generated images in a report."""


class DDPM(Task):
    """Image generation with DDPM, sampled by DDIM: digits, MNIST, CIFAR-10 or CelebA.

    The network predicts the noise ``e`` of an image at a random step ``t``, with the
    loss ``|e - network(sqrt(a_t) x + sqrt(1 - a_t) e, t)|^2`` (Ho et al., 2020). DDIM
    (Song et al., 2021) generates images in a few steps, from the same noise for every
    method. Without FID's Inception network, the Fréchet distance to images outside the
    training set uses the features of a small classifier of the same data. Such
    distances compare methods here; they are not FID.

    Args:
        seed: Random seed.
        split: Compare with ``test`` images or with a held-out fifth of the training
            images (``validation``).
        dataset: ``digits``, ``mnist``, ``cifar10`` or ``celeba``.
        scale: ``small``, or ``paper`` for the paper's network, epochs and samples.
        size: Training images; default: the scale's number, or all.
        batch: Images per optimizer step.
        samples: Generated images per evaluation.
        sampling_steps: DDIM steps.
        inception: Path of the weights of FID's Inception network; may be relative to
            the data folder. The distance is then FID, to the training images as usual.
        download: Whether torchvision may download the data.
    """

    metrics: tuple[Metric, ...] = (
        Metric(
            name="Fréchet distance, digit classifier's features", higher_is_better=False
        ),
        LOSS,
    )
    divides_evaluation = True

    @classmethod
    def metrics_for(cls, options: Mapping[str, Any]) -> tuple[Metric, ...]:
        """Name the distance after the network whose features it uses."""
        dataset = str(options.get("dataset", DEFAULTS["dataset"]))
        if options.get("inception") is not None:
            name = "FID"
        else:
            classifier = _CLASSIFIERS.get(dataset, dataset)
            name = f"Fréchet distance, {classifier} classifier's features"
        return Metric(name=name, higher_is_better=False), LOSS

    @classmethod
    def recipe_for(cls, options: Mapping[str, Any]) -> Recipe:
        """Return the training loop's part of the settings."""
        dataset, scale = (
            str(options.get(key, default)) for key, default in DEFAULTS.items()
        )
        settings = find_settings(dataset, scale)
        images = options.get("size") or settings.size
        steps = max(images // (options.get("batch") or settings.batch), 1)
        decay: dict[str, Any] = {"decay": settings.decay}
        methods = {
            "ema": decay,
            "switch-ema": {**decay, "switch_every": settings.switch_every},
        }
        if scale == "small":
            methods["lookahead"] = {"k": max(steps // 5, 1)}
        return Recipe(
            epochs=settings.epochs,
            warmup_epochs=settings.warmup_steps / steps,
            clip=1.0,
            methods=methods,
            evaluate_every=settings.evaluate_every,
            revision=1,  # DDPM's embedding, padding and initial weights
        )

    def __init__(
        self,
        seed: int,
        *,
        split: str = "test",
        dataset: str = DEFAULTS["dataset"],
        scale: str = DEFAULTS["scale"],
        size: int | None = None,
        batch: int | None = None,
        samples: int | None = None,
        sampling_steps: int | None = None,
        inception: str | None = None,
        download: bool = False,
    ) -> None:
        super().__init__(seed)
        settings = find_settings(dataset, scale)
        self.settings, self.dataset = settings, dataset
        self.batch = check_count("batch", batch or settings.batch)
        self.count = check_count("samples", samples or settings.samples, 2)
        self.steps = check_count(
            "sampling_steps", sampling_steps or settings.sampling_steps
        )
        self.compared: int | None = None
        """Real images that FID compares with; None: all."""
        self.inception = None if inception is None else _find_weights(inception)
        if self.inception is None and dataset not in _CLASSIFIERS:
            raise UsageError(
                f"{dataset} has no labels to train a classifier with: pass the path of "
                "the weights of FID's Inception network as the option inception."
            )
        self.metrics = self.metrics_for({"dataset": dataset, "inception": inception})
        side = settings.shape.image_size
        train, test = (ByteImages(x, side) for x in _load(dataset, seed, download))
        train = _chosen(train, size, min(settings.size, len(train)), seed)
        (self.x,), (self.x_eval,) = choose_split(split, seed, (train,), (test,))
        # Features and activations of many large images would take gigabytes.
        self.part = 500 if side <= 16 else 100

    @cached_property
    def diffusion(self) -> Any:
        """The scheduler that adds noise."""
        return sources.need("diffusers").DDPMScheduler(num_train_timesteps=_TIMESTEPS)

    @cached_property
    def distance(self) -> FrechetDistance:
        """The distance to real images."""
        if self.inception is not None:
            real = self.x[: self.compared].parts(self.part)
            return FrechetDistance(real, self.inception)
        side = self.settings.shape.image_size
        features = classifier_features(self.dataset, side)
        return FrechetDistance(self.x_eval.parts(self.part), features)

    def model(self) -> nn.Module:
        """Make the U-Net."""
        return create_denoiser(self.settings.shape)

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Make Adam, as in the paper."""
        return Adam(model.parameters(), lr=self.settings.lr)

    def train_loader(self, epoch: int) -> Loader:
        """Shuffle the images; flip half of them where that keeps the class."""
        rows = (FloatRows(self.x),)
        batches = Batches(rows, self.batch, self.seed, epoch=epoch, drop_last=True)
        if not self.settings.mirrored:
            return batches
        return _Mirrored(batches, stream(self.seed, f"mirrored in epoch {epoch}"))

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the squared error of the predicted noise, at random steps."""
        (images,) = batch
        steps = torch.randint(_TIMESTEPS, (len(images),), device=images.device)
        return self._error(model, images, torch.randn_like(images), steps)

    def _error(
        self, model: nn.Module, images: Tensor, noise: Tensor, steps: Tensor
    ) -> Tensor:
        noisy = self.diffusion.add_noise(2 * images - 1, noise, steps)
        return mse_loss(model(noisy, steps).sample, noise)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Generate images, measure their distance, and the loss on real ones."""
        device = next(model.parameters()).device
        self.distance.to(device)
        distance, loss = self.metrics
        images = self._generated(model, self.count, self.shard)
        return {
            distance.name: self.distance(images, self.shard),
            loss.name: self._held_out_loss(model, device),
        }

    def shorten_evaluation(self, examples: int) -> int:
        """Generate a few images, and compare them with as many."""
        self.count = self.compared = min(max(examples, 2), self.count)
        self.x_eval = self.x_eval[: self.count]
        return self.count

    def _held_out_loss(self, model: nn.Module, device: torch.device) -> float:
        """Return the loss on held-out images, with fixed noise."""
        generator, losses = stream(self.seed, "evaluated noise"), []
        own = self._own_parts(len(self.x_eval), self.shard)
        for index, images in enumerate(self.x_eval.parts(self.part)):
            noise = torch.randn(images.shape, generator=generator)
            steps = torch.randint(_TIMESTEPS, (len(images),), generator=generator)
            if index in own:
                moved = (tensor.to(device) for tensor in (images, noise, steps))
                losses.append(self._error(model, *moved).item() * len(images))
        return sum(self.shard.gather_items(losses)) / len(self.x_eval)

    def _own_parts(self, count: int, shard: Shard) -> range:
        """Return the numbers of the parts of ``count`` images that a worker takes."""
        parts = range(-(-count // self.part))
        return parts[shard.share(len(parts))]

    def generate(self, model: nn.Module, count: int) -> Tensor:
        """Generate images in [0, 1] with DDIM, from seeded noise.

        The first images do not depend on the count.
        """
        return torch.cat(list(self._generated(model, count, Shard())))

    def _generated(
        self, model: nn.Module, count: int, shard: Shard
    ) -> Iterator[Tensor]:
        """Generate a worker's share of the images, part by part."""
        device = next(model.parameters()).device
        scheduler = sources.need("diffusers").DDIMScheduler(
            num_train_timesteps=_TIMESTEPS
        )
        scheduler.set_timesteps(self.steps)
        generator = stream(self.seed, "sampled noise")
        own = self._own_parts(count, shard)
        for index, begin in enumerate(range(0, count, self.part)):
            size = (min(self.part, count - begin), *self.x.shape)
            noise = torch.randn(
                size, generator=generator
            )  # drawn for other workers, too
            if index not in own:
                continue
            images = noise.to(device)
            for step in scheduler.timesteps:
                predicted = model(images, step.to(device)).sample
                images = scheduler.step(predicted, step, images).prev_sample
            yield (images.cpu() + 1).div(2).clamp(0, 1)

    def trivial(self) -> dict[str, dict[str, float]]:
        """Measure draws from a Gaussian over pixels, and real images as the floor."""
        distance, loss = self.metrics
        generator = stream(self.seed, "pixel Gaussian")
        drawn = pixel_gaussian(self.x, self.count, self.part, generator)
        # FID compares with the training images, so the floor uses test images.
        others = (self.x if self.inception is None else self.x_eval)[: self.count]
        return {
            f"pixel Gaussian, {self.count:,} draws": {
                distance.name: self.distance(drawn)
            },
            f"floor: {len(others):,} real images": {
                distance.name: self.distance(others.parts(self.part))
            },
            "no noise predicted": {loss.name: 1.0},
        }

    def samples(self, model: nn.Module) -> Tensor:
        """Generate a few images."""
        return self.generate(model, SHOWN)


class _Mirrored:
    """Batches of images, half of them flipped."""

    def __init__(self, batches: Batches, generator: torch.Generator) -> None:
        self._batches, self._generator = batches, generator

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        for (images,) in self._batches:
            yield (mirror(images, self._generator),)


def _load(dataset: str, seed: int, download: bool) -> tuple[Tensor, Tensor]:
    """Return training and test images as bytes."""
    if dataset == "celeba":
        return load_celeba(download=download)
    data = load_images(dataset, seed, download=download)
    return data.x_train, data.x_test


def _chosen(images: ByteImages, size: int | None, most: int, seed: int) -> ByteImages:
    if size is None:
        size = most
    if check_count("size", size, 10) > len(images):
        raise ValueError(f"size must be at most {len(images)}, got {size}.")
    order = torch.randperm(len(images), generator=stream(seed, "generated from"))
    return images[order[:size]]


def _find_weights(path: str) -> str:
    """Find a weights file by path, in the data folder or in torch's cache."""
    found = find_weights_file(path)
    if found is None:
        raise UsageError(
            f"inception must be the path of FID's Inception weights; {path} is not a "
            "file, nor in the folder of data or torch's cache: `switch-ema data "
            "weights-inception --download` gets them."
        )
    return str(found)
