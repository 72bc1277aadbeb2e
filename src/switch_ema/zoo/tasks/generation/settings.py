"""Training and sampling settings of DDPM: the paper's Appendix B.4, and small."""

from dataclasses import dataclass, replace

from switch_ema.bench.errors import UsageError
from switch_ema.zoo.models.denoiser import DenoiserShape


@dataclass(frozen=True, kw_only=True)
class GenerationSettings:
    """Settings that depend on the data and the scale."""

    shape: DenoiserShape
    size: int
    """Training images."""
    batch: int
    lr: float
    """Learning rate of Adam."""
    warmup_steps: int
    epochs: int
    evaluate_every: int
    """Epochs between evaluations."""
    samples: int
    """Images generated per evaluation."""
    sampling_steps: int
    """DDIM steps, of the diffusion's 1,000."""
    mirrored: bool
    """Whether to flip half of the training images."""
    decay: float
    """The decay of EMA and Switch EMA."""
    switch_every: int
    """Epochs between switches."""

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps per epoch; an incomplete last batch is dropped."""
        return max(self.size // self.batch, 1)


_PAPER = GenerationSettings(
    # Network, warm-up and flips follow the configuration of ddpm-torch, the code that
    # the paper names.
    shape=DenoiserShape(
        image_size=32,
        channels=3,
        widths=(128, 256, 256, 256),
        attends=(False, True, False, False),
        dropout=0.1,
    ),
    size=50_000,
    batch=128,
    lr=2e-4,
    warmup_steps=5000,
    epochs=2000,
    evaluate_every=50,
    samples=50_000,
    sampling_steps=50,
    mirrored=True,
    decay=0.9999,
    switch_every=1,
)

PAPER: dict[str, GenerationSettings] = {
    "cifar10": _PAPER,
    "celeba": replace(
        _PAPER,
        shape=replace(
            _PAPER.shape,
            image_size=64,
            attends=(False, False, True, False),
            dropout=0.0,
        ),
        size=162_770,
        lr=2e-5,
        epochs=600,
        evaluate_every=20,
    ),
}

_DIGITS = GenerationSettings(
    shape=DenoiserShape(
        image_size=8,
        channels=1,
        widths=(16, 32),
        attends=(False, False),  # in addition to the middle block, which always attends
        layers=1,
        groups=8,
    ),
    size=1000,
    batch=32,
    lr=2e-3,
    warmup_steps=50,
    epochs=30,
    evaluate_every=30,
    samples=500,
    sampling_steps=25,
    mirrored=False,
    # Averages about the last epoch. With 31 steps per epoch, a switch keeps 40% of an
    # epoch's progress.
    decay=0.96565,
    switch_every=1,
)
_LARGER = DenoiserShape(
    image_size=16,
    channels=1,
    widths=(32, 64, 64),
    attends=(False, True, False),
    layers=1,
    groups=8,
)

SMALL: dict[str, GenerationSettings] = {
    "digits": _DIGITS,
    "mnist": replace(_DIGITS, shape=_LARGER, size=10_000, batch=64, lr=1e-3),
    "cifar10": replace(
        _DIGITS,
        shape=replace(_LARGER, channels=3),
        size=10_000,
        batch=64,
        lr=1e-3,
        mirrored=True,
    ),
}


def find_settings(dataset: str, scale: str) -> GenerationSettings:
    """Return the settings of a dataset at a scale, small or paper."""
    scales = {"small": SMALL, "paper": PAPER}
    if scale not in scales:
        raise UsageError(f"scale must be small or paper, got {scale!r}.")
    if dataset not in scales[scale]:
        raise UsageError(
            f"dataset must be one of {', '.join(scales[scale])} at the scale {scale}, "
            f"got {dataset!r}."
        )
    return scales[scale][dataset]
