"""Pre-training settings, at the paper's scale and small.

The rows are the paper's table of pre-training settings, with two corrections from its
released configurations. The table swaps the optimizers and weight decays of SimCLR and
MoCo v2; as released, and as in the methods' papers, SimCLR uses LARS and MoCo v2 uses
SGD. And 0.99996, which the text gives for the teachers of BYOL and MoCo v3, is near the
end of their cosine, which starts at 0.99 (MoCo v3 as released; used for BYOL as well)
and ends at 1.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import Optimizer

from switch_ema.bench.optimizers.catalog import create_optimizer
from switch_ema.bench.spec import Spec
from switch_ema.zoo.decays import DECAYS


@dataclass(frozen=True, kw_only=True)
class PaperSettings:
    """One column of the table."""

    optimizer: str
    """adamw, lars or sgd."""
    lr: float
    """Learning rate at the batch size below; scales linearly with the batch size."""
    weight_decay: float
    batch: int
    warmup_epochs: float = 10.0
    clip: float | None = None
    betas: tuple[float, float] = (0.9, 0.999)
    vector_rate: float = 1.0
    """Factor of the learning rate of tensors without weight decay."""
    methods: Mapping[str, Mapping[str, Any]]
    """Decays for CIFAR-100, by averaging method."""


SIDE = DECAYS["cifar100", "contrastive"].options()
MASKED = DECAYS["cifar100", "masked"].options()
_MOMENTUM = {"ema": {"decay": 0.99}, "switch-ema": {"decay": 0.99}}

SIMCLR = PaperSettings(
    optimizer="lars", lr=4.8, weight_decay=1e-6, batch=4096, methods=SIDE
)
MOCO_V2 = PaperSettings(
    optimizer="sgd",
    lr=0.03,
    weight_decay=1e-4,
    batch=256,
    warmup_epochs=0.0,
    methods={"ema": {"decay": 0.998}, "switch-ema": {"decay": 0.998}},
)
BYOL = PaperSettings(
    optimizer="lars", lr=4.8, weight_decay=1e-6, batch=4096, methods=_MOMENTUM
)
BARLOW_TWINS = PaperSettings(
    optimizer="lars",
    lr=1.6,
    weight_decay=1e-6,
    batch=2048,
    vector_rate=0.024,  # 0.0048 where the weights have 0.2
    methods=SIDE,
)
MOCO_V3 = PaperSettings(
    optimizer="adamw",
    lr=2.4e-3,
    weight_decay=0.1,
    batch=4096,
    warmup_epochs=40.0,
    clip=5.0,
    betas=(0.9, 0.95),
    methods=_MOMENTUM,
)
MAE = PaperSettings(
    optimizer="adamw",
    lr=1.2e-3,
    weight_decay=0.05,
    batch=2048,
    clip=5.0,
    methods=MASKED,
)
SIMMIM = PaperSettings(
    optimizer="adamw",
    lr=4e-4,
    weight_decay=0.05,
    batch=2048,
    clip=5.0,
    methods=MASKED,
)


def paper_optimizer(settings: PaperSettings, model: nn.Module, batch: int) -> Optimizer:
    """Make the optimizer; biases, norms, tokens and positions get no weight decay.

    LARS does not adapt their rates either. Only MoCo v2's SGD decays every tensor.
    """
    options: dict[str, Any] = {
        "lr": settings.lr * batch / settings.batch,
        "weight_decay": settings.weight_decay,
    }
    if settings.optimizer == "adamw":
        options["betas"] = settings.betas
    else:
        options["momentum"] = 0.9
    spec = Spec(settings.optimizer, options)
    optimizer = create_optimizer(spec, model, decay_all=settings.optimizer == "sgd")
    for group in optimizer.param_groups:
        if group["weight_decay"] == 0:
            group["lr"] *= settings.vector_rate
    return optimizer
