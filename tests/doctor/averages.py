"""Averages of several libraries, by their own code, and short trainings with them."""

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

DECAY = 0.98
SAVED = (150, 200, 250, 300)
"""Steps after which a checkpoint is written."""


def network() -> nn.Module:
    """A network with batch norm."""
    return nn.Sequential(
        nn.Linear(8, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(),
        nn.Linear(24, 3),
    )  # fmt: skip


class Transformer(nn.Module):
    """A small language model."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(16, 16)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.embedding(tokens)))


Loss = Callable[[nn.Module], torch.Tensor]
Recipe = tuple[nn.Module, torch.optim.Optimizer, Loss]


def mlp_with_sgd() -> Recipe:
    model, target = network(), network()

    def loss(model: nn.Module) -> torch.Tensor:
        x = torch.randn(16, 8)
        y = target(x).detach() + 0.5 * torch.randn(16, 3)
        return nn.functional.mse_loss(model(x), y)

    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), loss


def cnn_with_sgd() -> Recipe:
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(),
        nn.Flatten(), nn.Linear(32, 4),
    )  # fmt: skip
    classes = torch.randn(4, 1, 6, 6)

    def loss(model: nn.Module) -> torch.Tensor:
        labels = torch.randint(4, (16,))
        x = classes[labels] + 2 * torch.randn(16, 1, 6, 6)
        return nn.functional.cross_entropy(model(x), labels)

    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.03, momentum=0.9, weight_decay=1e-4
    )
    return model, optimizer, loss


def transformer_with_adamw() -> Recipe:
    model = Transformer()
    following = torch.randn(16, 16).mul(2).softmax(1)
    texts = torch.randint(16, (512, 9))
    for position in range(1, 9):
        probabilities = following[texts[:, position - 1]]
        texts[:, position] = torch.multinomial(probabilities, 1)[:, 0]

    def loss(model: nn.Module) -> torch.Tensor:
        tokens = texts[torch.randint(512, (8,))]
        logits = model(tokens[:, :-1]).flatten(0, 1)
        return nn.functional.cross_entropy(logits, tokens[:, 1:].flatten())

    return model, torch.optim.AdamW(model.parameters(), lr=3e-3), loss


RECIPES: tuple[Callable[[], Recipe], ...] = (
    mlp_with_sgd,
    transformer_with_adamw,
    cnn_with_sgd,
)


class Average:
    """One library's average: how it is made, updated and saved.

    Options are those of the library.
    """

    def __init__(
        self, model: nn.Module, decay: float, options: dict[str, Any] | None = None
    ) -> None:
        self.decay, self.options = decay, options or {}
        self.count = 0
        self.make(model, decay)

    def make(self, model: nn.Module, decay: float) -> None:
        raise NotImplementedError

    def update(self, model: nn.Module) -> None:
        raise NotImplementedError

    def forget_count(self) -> None:
        """Lose the count of updates, as on resuming without it."""
        raise NotImplementedError

    def tensors(self) -> list[torch.Tensor]:
        """The average's own tensors of the parameters."""
        raise NotImplementedError

    def content(self, live: dict[str, torch.Tensor]) -> dict[str, Any]:
        """What users of the library save."""
        raise NotImplementedError


class AveragedModel(Average):
    def make(self, model, decay):
        from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

        defaults = {"multi_avg_fn": get_ema_multi_avg_fn(decay)}
        self.inner = AveragedModel(model, **(defaults | self.options))

    def update(self, model):
        self.inner.update_parameters(model)

    def forget_count(self):
        self.inner.n_averaged.zero_()

    def tensors(self):
        return list(self.inner.module.parameters())

    def content(self, live):
        return {"model": live, "ema_model": self.inner.state_dict()}


class Timm(Average):
    def make(self, model, decay):
        from timm.utils import ModelEmaV3

        self.inner = ModelEmaV3(model, decay=decay, **self.options)

    def update(self, model):
        self.count += 1
        self.inner.update(model, self.count if self.options else None)

    def forget_count(self):
        self.count = 0

    def tensors(self):
        return list(self.inner.module.parameters())

    def content(self, live):
        average = self.inner.module.state_dict()
        return {"arch": "x", "state_dict": live, "state_dict_ema": average}


class TimmV2(Timm):
    """The second version, which averages integers, too."""

    def make(self, model, decay):
        from timm.utils import ModelEmaV2

        self.inner = ModelEmaV2(model, decay=decay)

    def update(self, model):
        self.inner.update(model)


class EMAPytorch(Average):
    def make(self, model, decay):
        from ema_pytorch import EMA

        without_warmup = {"update_every": 1, "update_after_step": 0, "inv_gamma": 1e-9}
        options = {"beta": decay, "include_online_model": False}
        options |= self.options or without_warmup
        self.inner = EMA(model, **options)

    def update(self, model):
        self.inner.online_model[0] = model
        self.inner.update()

    def forget_count(self):
        self.inner.step.zero_()

    def tensors(self):
        return list(self.inner.ema_model.parameters())

    def content(self, live):
        average = self.inner.state_dict()
        return {"model_state_dict": live, "ema_model_state_dict": average}


class TorchEMA(Average):
    def make(self, model, decay):
        from torch_ema import ExponentialMovingAverage

        options = {"use_num_updates": False} | self.options
        self.inner = ExponentialMovingAverage(model.parameters(), decay, **options)

    def update(self, model):
        self.inner.update(model.parameters())
        self.count += 1

    def forget_count(self):
        self.count = 0
        if self.inner.num_updates is not None:
            self.inner.num_updates = 0

    def tensors(self):
        return self.inner.shadow_params

    def content(self, live):
        state = self.inner.state_dict() | {"num_updates": self.count}
        return {"model": live, "ema": state}


class Diffusers(Average):
    def make(self, model, decay):
        from diffusers.training_utils import EMAModel

        options = self.options or {"min_decay": decay}
        self.inner = EMAModel(model.parameters(), decay=decay, **options)

    def update(self, model):
        self.inner.step(model.parameters())

    def forget_count(self):
        self.inner.optimization_step = 0

    def tensors(self):
        return self.inner.shadow_params

    def content(self, live):
        return {"model": live, "ema": self.inner.state_dict()}


class MMEngine(Average):
    kind = "ExponentialMovingAverage"

    def make(self, model, decay):
        import mmengine.model

        options = {"update_buffers": True} | self.options
        if self.kind != "StochasticWeightAverage":
            options["momentum"] = 1 - decay
        self.inner = getattr(mmengine.model, self.kind)(model, **options)

    def update(self, model):
        self.inner.update_parameters(model)

    def forget_count(self):
        self.inner.steps.zero_()

    def tensors(self):
        return list(self.inner.module.parameters())

    def content(self, live):
        return {"model": live, "ema": self.inner.state_dict()}


class MMEngineAnnealing(MMEngine):
    kind = "MomentumAnnealingEMA"


class MMEngineSWA(MMEngine):
    kind = "StochasticWeightAverage"


class Ours(Average):
    def make(self, model, decay):
        from switch_ema import EMA, constant

        self.inner = EMA(model, **({"decay": constant(decay)} | self.options))

    def update(self, model):
        self.inner.update()

    def tensors(self):
        return [
            value
            for name, value in self.inner.averaged_tensors().items()
            if "running" not in name and "num_batches" not in name
        ]

    def content(self, live):
        return {"model": live, "ema": self.inner.state_dict()}


class OurMethod(Ours):
    """Any method of ours, with epochs of 25 steps."""

    def make(self, model, decay):
        from switch_ema.averaging.registry import create_averager

        options = dict(self.options)
        self.inner = create_averager(options.pop("method"), model, **options)

    def update(self, model):
        self.inner.update()
        if self.inner.steps % 25 == 0:
            self.inner.end_epoch()


class Loop(Average):
    """The loop that DiT and many scripts have, with an optional warm-up."""

    def make(self, model, decay):
        self.inner = copy.deepcopy(model).requires_grad_(False)

    def update(self, model):
        self.count += 1
        decay = self.decay
        if self.options.get("warmup"):
            decay = min(decay, (1 + self.count) / (10 + self.count))
        for shadow, value in zip(
            self.inner.parameters(), model.parameters(), strict=True
        ):
            shadow.mul_(decay).add_(value.data, alpha=1 - decay)
        for shadow, value in zip(self.inner.buffers(), model.buffers(), strict=True):
            shadow.copy_(value)

    def forget_count(self):
        self.count = 0

    def tensors(self):
        return list(self.inner.parameters())

    def content(self, live):
        return {"model": live, "ema": self.inner.state_dict(), "updates": self.count}


class StateDictLoop(Loop):
    """A loop over all values of the state dict, counters among them."""

    def update(self, model):
        self.count += 1
        own, other = self.inner.state_dict(), model.state_dict()
        for name, shadow in own.items():
            shadow.copy_(self.decay * shadow + (1 - self.decay) * other[name])


LIBRARIES: dict[str, type[Average]] = {
    "torch AveragedModel": AveragedModel,
    "timm": Timm,
    "ema-pytorch": EMAPytorch,
    "torch_ema": TorchEMA,
    "diffusers": Diffusers,
    "MMEngine": MMEngine,
    "switch-ema": Ours,
    "plain loop": Loop,
}


@dataclass
class Trajectory:
    """The live weights at every step of a training, and the model before it."""

    model: nn.Module
    states: list[list[torch.Tensor]]


@lru_cache(maxsize=32)
def trajectory(recipe: Callable[[], Recipe], seed: int, cosine: bool) -> Trajectory:
    """Train without an average; many averages then follow the same weights."""
    training = _Training(recipe, seed, cosine)
    initial = copy.deepcopy(training.model)
    states = []
    for _ in range(SAVED[-1]):
        training.step()
        states.append([v.clone() for v in training.model.state_dict().values()])
    return Trajectory(initial, states)


class _Training:
    def __init__(self, recipe: Callable[[], Recipe], seed: int, cosine: bool) -> None:
        torch.manual_seed(seed)
        self.model, self._optimizer, self._loss = recipe()
        half_turn = math.pi / SAVED[-1]
        self._schedule = LambdaLR(
            self._optimizer,
            lambda step: (1 + math.cos(half_turn * step)) / 2 if cosine else 1.0,
        )

    def step(self) -> None:
        self._loss(self.model).backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._schedule.step()


@dataclass
class Case:
    """A training run whose checkpoints the doctor sees."""

    library: type[Average]
    seed: int
    folder: Path
    decay: float = DECAY
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the library."""
    recipe: Callable[[], Recipe] = mlp_with_sgd
    before_update: Callable[["Case", int], bool] = lambda case, step: True
    """Called after each step; False: the average is not updated."""
    follow: Callable[["Case"], nn.Module] | None = None
    """Returns what the average follows in place of the model, at first and later."""
    at_save: Callable[["Case", dict[str, Any], int], dict[str, Any]] = (
        lambda case, content, step: content
    )
    updates: int = 1
    cosine: bool = False
    """Whether the learning rate falls to zero."""
    writes_live: bool = False
    """Whether the average changes the live weights, as Switch EMA does."""

    def run(self) -> list[Path]:
        """Train, and return the checkpoints."""
        self.at = 0
        steps = self._train() if self.writes_live else self._replay()
        paths = []
        for self.at in steps:
            if self.at == 0:
                self.average = self.new_average()
                continue
            if self.before_update(self, self.at):
                for _ in range(self.updates):
                    self.average.update(self._followed())
            if self.at in SAVED:
                live = {n: v.clone() for n, v in self.model.state_dict().items()}
                content = copy.deepcopy(self.average.content(live))
                path = self.folder / f"step-{self.at}.pt"
                torch.save(self.at_save(self, content, self.at), path)
                paths.append(path)
        return paths

    def _train(self) -> Iterator[int]:
        training = _Training(self.recipe, self.seed, self.cosine)
        self.model = training.model
        yield 0
        for step in range(1, SAVED[-1] + 1):
            training.step()
            yield step

    def _replay(self) -> Iterator[int]:
        known = trajectory(self.recipe, self.seed, self.cosine)
        self.model = copy.deepcopy(known.model)
        yield 0
        for step, state in enumerate(known.states, 1):
            show(self.model, state)
            yield step

    def new_average(self) -> Average:
        return self.library(self._followed(), self.decay, self.options)

    def _followed(self) -> nn.Module:
        return self.model if self.follow is None else self.follow(self)


def show(model: nn.Module, state: list[torch.Tensor]) -> None:
    """Give a model the values of a step."""
    for own, value in zip(model.state_dict().values(), state, strict=True):
        own.copy_(value)
