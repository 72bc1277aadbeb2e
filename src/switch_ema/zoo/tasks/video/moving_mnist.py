"""Video prediction on Moving MNIST, as in Table 9 of the paper."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.optim import Adam, Optimizer

from switch_ema._checks import check_choice, check_count
from switch_ema.bench.task import CONTROL_EPOCHS, Loader, Metric, Recipe, Task
from switch_ema.zoo.data import sources
from switch_ema.zoo.data.moving import SOURCES, digit_images, moving_clips
from switch_ema.zoo.data.splits import choose_split, stream
from switch_ema.zoo.models.video import VIDEO_NETWORKS

_SEEN = 10
"""Input frames; the network predicts as many."""
DEFAULTS = {"network": "simvp", "scale": "small"}

MSE = Metric(name="MSE", higher_is_better=False)
MAE = Metric(name="MAE", higher_is_better=False)
SSIM = Metric(name="SSIM", higher_is_better=True)
PSNR = Metric(name="PSNR", higher_is_better=True, unit="dB")


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
        decay=0.999,
    )


SETTINGS: dict[tuple[str, str], VideoSettings] = {
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
        network: ``simvp``, ``simvp-v2``, ``convlstm`` or ``predrnn``.
        scale: ``small``, or ``paper`` for the paper's networks, frames and epochs.
        digits: ``digits`` (scikit-learn's, scaled up) or ``mnist``; default: the
            scale's.
        side: Height and width of a frame, a multiple of 4; default: the scale's.
        clips: Training clips per epoch.
        tested: Evaluation clips.
        batch: Clips per optimizer step.
        download: Whether torchvision may download MNIST.
    """

    metrics = (MSE, MAE, SSIM, PSNR)

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
        batch: int | None = None,
        download: bool = False,
    ) -> None:
        super().__init__(seed)
        self.settings = settings = find_settings(network, scale)
        self.network, self.scale = VIDEO_NETWORKS[network], scale
        self.side = check_count("side", side or settings.side, 16)
        if self.side % 4:
            raise ValueError(f"side must be a multiple of 4, got {self.side}.")
        self.clips = check_count("clips", clips or settings.clips)
        self.batch = min(check_count("batch", batch or settings.batch), self.clips)
        check_count("tested", tested or settings.tested)
        source = check_choice("digits", digits or settings.digits, SOURCES)
        train, test = digit_images(source, self.side, seed, download=download)
        (train,), (test,) = choose_split(split, seed, (train,), (test,))
        self.digits = train
        self.x_eval = moving_clips(
            test, tested or settings.tested, self.side, seed, "evaluated clips"
        )

    def model(self) -> nn.Module:
        """Make the network."""
        return self.network.make[self.scale]()

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
        return frame_errors(self.predict(model, self.x_eval), self.truth)

    def shorten_evaluation(self, examples: int) -> int:
        """Keep the first evaluation clips."""
        self.x_eval = self.x_eval[:examples]
        return len(self.x_eval)

    @property
    def truth(self) -> Tensor:
        """The frames to predict, in [0, 1]."""
        return self.x_eval[:, _SEEN:].float() / 255

    def predict(self, model: nn.Module, clips: Tensor) -> Tensor:
        """Return the frames after the first ten, on the CPU."""
        device = next(model.parameters()).device
        seen = torch.split(clips[:, :_SEEN], 100)
        found = [model(part.to(device).float() / 255)[:, -_SEEN:] for part in seen]
        return torch.cat(found).float().cpu()

    def trivial(self) -> dict[str, dict[str, float]]:
        """Measure repeating the last frame, the mean image and black frames."""
        truth = self.truth
        drawn = moving_clips(self.digits, 1000, self.side, self.seed, "mean image")
        mean = drawn.float().mean((0, 1)) / 255
        guesses = {
            "copy of the last frame": self.x_eval[:, _SEEN - 1 : _SEEN].float() / 255,
            "mean image": mean,
            "black frames": torch.zeros(1),
        }
        return {
            name: frame_errors(guess.expand_as(truth), truth)
            for name, guess in guesses.items()
        }

    def samples(self, model: nn.Module) -> dict[str, Tensor]:
        """Show the input, true and predicted frames."""
        clip = self.x_eval[:1]
        return {
            "seen": clip[0, :_SEEN].float() / 255,
            "truth": clip[0, _SEEN:].float() / 255,
            "prediction": self.predict(model, clip)[0].clamp(0, 1),
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


def frame_errors(predicted: Tensor, truth: Tensor) -> dict[str, float]:
    """Measure frames: clips x frames x channels x height x width.

    MSE and MAE are summed over the pixels of a frame and averaged over frames and
    clips, on unclipped predictions. SSIM and PSNR are means over frames, with
    predictions clipped to [0, 1].
    """
    error = (predicted - truth).double()
    metrics = sources.need("torchmetrics.functional.image")
    inside, frames = predicted.clamp(0, 1).flatten(0, 1), truth.flatten(0, 1)
    ssim = metrics.structural_similarity_index_measure(inside, frames, data_range=1.0)
    squares = (inside - frames).double().square().flatten(1).mean(1)
    return {
        MSE.name: error.square().sum((2, 3, 4)).mean().item(),
        MAE.name: error.abs().sum((2, 3, 4)).mean().item(),
        SSIM.name: float(ssim),
        # PSNR is infinite for a frame without error.
        PSNR.name: (-10 * squares.clamp(min=1e-10).log10()).mean().item(),
    }
