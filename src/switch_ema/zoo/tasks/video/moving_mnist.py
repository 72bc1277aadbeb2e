"""Video prediction on Moving MNIST, as in Table 9 of the paper."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.optim import Adam, Optimizer

from switch_ema._checks import check_choice, check_count
from switch_ema.bench.errors import UsageError
from switch_ema.bench.task import CONTROL_EPOCHS, Loader, Metric, Recipe, Shard, Task
from switch_ema.zoo.data import sources
from switch_ema.zoo.data.moving import (
    SOURCES,
    digit_images,
    moving_clips,
    published_clips,
)
from switch_ema.zoo.data.splits import check_split, choose_split, stream
from switch_ema.zoo.models.video import METAFORMERS, VIDEO_NETWORKS

_SEEN = 10
"""Input frames; the network predicts as many."""
DEFAULTS = {"network": "simvp", "scale": "small"}

MSE = Metric(name="MSE", higher_is_better=False)
MAE = Metric(name="MAE", higher_is_better=False)
SSIM = Metric(name="SSIM", higher_is_better=True)
PSNR = Metric(name="PSNR", higher_is_better=True, unit="dB")
_NAMES = tuple(metric.name for metric in (MSE, MAE, SSIM, PSNR))
_TEST_CLIPS = ("drawn", "published")
WHOLE = Shard()


@dataclass(frozen=True, kw_only=True)
class VideoSettings:
    """Settings that depend on the network and the scale."""

    lr: float
    """Maximum learning rate of Adam's one-cycle schedule."""
    epochs: int = 6
    evaluate_every: int = 3
    """Epochs between evaluations."""
    forced_epochs: float = 0.0
    """Epochs over which the share of true frames shown to a recurrent network falls
    from 1 to 0."""
    side: int = 32
    clips: int = 200
    """Clips per epoch."""
    tested: int = 100
    batch: int = 8
    digits: str = "digits"
    test_clips: str = "drawn"
    decay: float = 0.9
    """Decay of EMA and Switch EMA: with 25 steps per epoch a switch keeps two thirds of
    its progress."""


def _paper(lr: float, forced_epochs: float = 0.0) -> VideoSettings:
    # Learning rates and forcing follow OpenSTL, whose published results after 200
    # epochs are the paper's baselines.
    return VideoSettings(
        lr=lr,
        epochs=200,
        evaluate_every=10,
        forced_epochs=forced_epochs,
        side=64,
        clips=10_000,
        tested=10_000,
        batch=16,
        digits="mnist",
        test_clips="published",
        decay=0.999,
    )


SETTINGS: dict[tuple[str, str], VideoSettings] = {
    **{(f"simvp-{name}", "small"): VideoSettings(lr=2e-3) for name in METAFORMERS},
    **{(f"simvp-{name}", "paper"): _paper(1e-3) for name in METAFORMERS},
    ("simvp", "small"): VideoSettings(lr=1e-2),
    ("simvp-v2", "small"): VideoSettings(lr=1e-2),
    ("convlstm", "small"): VideoSettings(lr=5e-3, forced_epochs=3),
    ("predrnn", "small"): VideoSettings(lr=5e-3, forced_epochs=3),
    ("simvp", "paper"): _paper(1e-3),
    ("simvp-v2", "paper"): _paper(1e-3),
    ("convlstm", "paper"): _paper(5e-4, forced_epochs=80),
    ("predrnn", "paper"): _paper(5e-4, forced_epochs=80),
}
"""By network and scale."""


class MovingMNIST(Task):
    """Video prediction on Moving MNIST: SimVP, SimVP.V2, ConvLSTM or PredRNN.

    Given ten frames with two moving digits, the network predicts the next ten. Each
    epoch generates new clips from the training digits; evaluation clips use the test
    digits. MSE and MAE are sums over the pixels of a frame, as in OpenSTL; SSIM and
    PSNR are computed on frames in [0, 1].

    SimVP predicts all frames at once. The recurrent networks predict every frame from
    the second on, and the loss includes all of them. For frames 11 to 19 they see the
    true frame with a probability that falls to 0 during training, and otherwise their
    own prediction (scheduled sampling, Bengio et al., 2015).

    Args:
        seed: Random seed.
        split: Evaluate on clips of ``test`` digits or of a held-out fifth of the
            training digits (``validation``).
        network: ``simvp``, ``simvp-v2``, ``convlstm``, ``predrnn``, or SimVP with the
            blocks of another network: ``simvp-vit``, ``simvp-swin``,
            ``simvp-mlp-mixer``, ``simvp-convmixer``, ``simvp-poolformer``,
            ``simvp-convnext`` or ``simvp-moganet``.
        scale: ``small``, or ``paper`` for the paper's networks, frames and epochs.
        digits: ``digits`` (scikit-learn's, scaled up) or ``mnist``; default: the
            scale's.
        side: Height and width of a frame, a multiple of 4; default: the scale's.
        clips: Training clips per epoch.
        tested: Evaluation clips; default: the scale's, or all published ones.
        test_clips: ``drawn`` from the test digits, or ``published`` for the clips of
            mnist_test_seq.npy, with frames of 64 pixels; default: the scale's.
        batch: Clips per optimizer step.
        download: Whether torchvision may download MNIST.
    """

    metrics = (MSE, MAE, SSIM, PSNR)
    divides_evaluation = True

    @classmethod
    def recipe_for(cls, options: Mapping[str, Any]) -> Recipe:
        """Return the training loop's part of the settings."""
        network, scale = (
            str(options.get(key, default)) for key, default in DEFAULTS.items()
        )
        settings = find_settings(network, scale)
        methods: dict[str, dict[str, Any]] = {
            name: {"decay": settings.decay} for name in ("ema", "switch-ema")
        }
        return Recipe(
            epochs=settings.epochs,
            schedule="one-cycle:cycle_momentum=True",  # as in OpenSTL
            methods=methods,
            evaluate_every=settings.evaluate_every,
            revision=1 if network == "simvp-v2" else 0,  # stochastic depth
        )

    def __init__(
        self,
        seed: int,
        *,
        split: str = "test",
        network: str = DEFAULTS["network"],
        scale: str = DEFAULTS["scale"],
        digits: str | None = None,
        side: int | None = None,
        clips: int | None = None,
        tested: int | None = None,
        test_clips: str | None = None,
        batch: int | None = None,
        download: bool = False,
    ) -> None:
        super().__init__(seed)
        self.settings = settings = find_settings(network, scale)
        self.network, self.scale = VIDEO_NETWORKS[network], scale
        self.side = check_count("side", side or settings.side, 16)
        self.evaluated_at_once = max(100 * 32**2 // self.side**2, 1)
        """Clips per forward pass: 100 of 32 by 32 pixels, and fewer larger ones."""
        if self.side % 4:
            raise ValueError(f"side must be a multiple of 4, got {self.side}.")
        self.clips = check_count("clips", clips or settings.clips)
        self.batch = min(check_count("batch", batch or settings.batch), self.clips)
        check_count("tested", tested or settings.tested)
        source = check_choice("digits", digits or settings.digits, SOURCES)
        train, test = digit_images(source, self.side, seed, download=download)
        (train,), (test,) = choose_split(split, seed, (train,), (test,))
        self.digits = train
        kind = check_choice(
            "test_clips", test_clips or settings.test_clips, _TEST_CLIPS
        )
        # Held-out digits are no test digits: their clips have to be drawn.
        if kind == "published" and not check_split(split):
            self.x_eval = self._published(tested)
        else:
            count = tested or settings.tested
            self.x_eval = moving_clips(test, count, self.side, seed, "evaluated clips")

    def _published(self, tested: int | None) -> Tensor:
        clips = published_clips()
        if clips.shape[-1] != self.side:
            raise UsageError(
                f"the published test clips have frames of {clips.shape[-1]} pixels, "
                f"but side is {self.side}: set test_clips=drawn."
            )
        if tested is not None and tested > len(clips):
            raise UsageError(
                f"tested must be at most {len(clips)}, the published clips, got "
                f"{tested}."
            )
        return clips[:tested]

    def model(self) -> nn.Module:
        """Make the network."""
        return self.network.make[self.scale](self.side)

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Make Adam, as in the paper."""
        return Adam(model.parameters(), lr=self.settings.lr)

    def train_loader(self, epoch: int) -> Loader:
        """Draw new clips, and the true frames shown to a recurrent network."""
        return Clips(self, epoch)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the squared error of the predicted frames."""
        clips, forced = batch
        if forced.shape[1]:
            return mse_loss(model(clips, forced), clips[:, 1:])
        return mse_loss(model(clips[:, :_SEEN]), clips[:, _SEEN:])

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Compare the predicted frames with the true ones."""
        return self._errors(lambda seen: self.predict(model, seen), self.shard)

    def shorten_evaluation(self, examples: int) -> int:
        """Keep the first evaluation clips."""
        self.x_eval = self.x_eval[:examples]
        return len(self.x_eval)

    def _errors(
        self, predict: Callable[[Tensor], Tensor], shard: Shard = WHOLE
    ) -> dict[str, float]:
        """Measure predictions part by part: all of them would take gigabytes.

        Args:
            predict: Returns the frames that follow those seen.
            shard: The worker's share of the parts.
        """
        errors, parts = FrameErrors(), torch.split(self.x_eval, self.evaluated_at_once)
        for clips in parts[shard.share(len(parts))]:
            frames = clips.float() / 255
            seen, truth = frames[:, :_SEEN], frames[:, _SEEN:]
            errors.add(predict(seen).expand_as(truth), truth)
        return errors.means(shard)

    def predict(self, model: nn.Module, seen: Tensor) -> Tensor:
        """Return the frames after the first ten, on the CPU."""
        device = next(model.parameters()).device
        found: Tensor = model(seen.to(device))[:, -_SEEN:]
        return found.float().cpu()

    def trivial(self) -> dict[str, dict[str, float]]:
        """Measure repeating the last frame, the mean image and black frames."""
        drawn = moving_clips(self.digits, 1000, self.side, self.seed, "mean image")
        mean = drawn.float().mean((0, 1)) / 255
        return {
            "copy of the last frame": self._errors(lambda seen: seen[:, -1:]),
            "mean image": self._errors(lambda _: mean),
            "black frames": self._errors(lambda _: torch.zeros(1)),
        }

    def samples(self, model: nn.Module) -> dict[str, Tensor]:
        """Show the input, true and predicted frames."""
        clip = self.x_eval[:1].float() / 255
        return {
            "seen": clip[0, :_SEEN],
            "truth": clip[0, _SEEN:],
            "prediction": self.predict(model, clip[:, :_SEEN])[0].clamp(0, 1),
        }


class Clips:
    """Batches of new clips, with the true frames shown to a recurrent network."""

    def __init__(self, task: MovingMNIST, epoch: int) -> None:
        self._task, self._epoch = task, epoch

    def __len__(self) -> int:
        return self._task.clips // self._task.batch

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        task = self._task
        recurrent = task.settings.forced_epochs > 0
        generator = stream(task.seed, f"frames seen in epoch {self._epoch}")
        for index in range(len(self)):
            name = f"clips of epoch {self._epoch}, batch {index}"
            clips = moving_clips(task.digits, task.batch, task.side, task.seed, name)
            draws = torch.rand(len(clips), (_SEEN - 1) * recurrent, generator=generator)
            yield clips.float() / 255, draws < self._share(index)

    def _share(self, index: int) -> float:
        """Return the share of true frames to show, from 1 down to 0."""
        passed = self._epoch % CONTROL_EPOCHS + index / len(self)
        return 1 - passed / max(self._task.settings.forced_epochs, 1e-9)


def find_settings(network: str, scale: str) -> VideoSettings:
    """Return the settings of a network at a scale, small or paper."""
    check_choice("network", network, tuple(VIDEO_NETWORKS))
    return SETTINGS[network, check_choice("scale", scale, ("small", "paper"))]


class FrameErrors:
    """Errors of predicted frames, accumulated part by part.

    MSE and MAE are summed over the pixels of a frame and averaged over frames and
    clips, on unclipped predictions. SSIM and PSNR are means over frames, with
    predictions clipped to [0, 1].
    """

    def __init__(self) -> None:
        self._parts: list[tuple[int, dict[str, float]]] = []
        """Frames of each part, and the sums of their errors."""

    def add(self, predicted: Tensor, truth: Tensor) -> None:
        """Add clips x frames x channels x height x width."""
        metrics = sources.need("torchmetrics.functional.image")
        predicted, truth = predicted.flatten(0, 1), truth.flatten(0, 1)
        error, inside = (predicted - truth).double(), predicted.clamp(0, 1)
        squares = (inside - truth).double().square().flatten(1).mean(1)
        ssim = metrics.structural_similarity_index_measure(
            inside, truth, data_range=1.0, reduction="sum"
        )
        sums = {
            MSE: error.square().sum(),
            MAE: error.abs().sum(),
            SSIM: ssim,
            # PSNR is infinite for a frame without error.
            PSNR: (-10 * squares.clamp(min=1e-10).log10()).sum(),
        }
        named = {metric.name: float(value) for metric, value in sums.items()}
        self._parts.append((len(truth), named))

    def means(self, shard: Shard = WHOLE) -> dict[str, float]:
        """Return the means over all frames so far, of all workers of a shard."""
        parts = shard.gather_items(self._parts)
        frames = sum(count for count, _ in parts)
        return {name: sum(sums[name] for _, sums in parts) / frames for name in _NAMES}
