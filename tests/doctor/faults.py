"""Puts faults into the averages of several libraries, by the libraries' own code.

``python -m tests.doctor.faults --seeds 5`` runs all of them, and healthy averages, and
writes how often the doctor named the fault.
"""

import argparse
import copy
import json
import math
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from switch_ema.doctor.diagnosis import Diagnosis, diagnose

DECAY = 0.98
SAVED = (150, 200, 250, 300)
"""Steps after which a checkpoint is written."""


def network(with_norm: bool = True) -> nn.Module:
    norm = nn.BatchNorm1d(24) if with_norm else nn.LayerNorm(24)
    return nn.Sequential(
        nn.Linear(8, 24), norm, nn.ReLU(), nn.Linear(24, 24), nn.ReLU(),
        nn.Linear(24, 3),
    )  # fmt: skip


class Average:
    """One library's average: how it is made, updated and saved."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model, self.decay = model, decay
        self.make(model, decay)

    def make(self, model: nn.Module, decay: float) -> None:
        raise NotImplementedError

    def update(self, model: nn.Module) -> None:
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

        self.inner = AveragedModel(
            model, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=True
        )

    def update(self, model):
        self.inner.update_parameters(model)

    def tensors(self):
        return list(self.inner.module.parameters())

    def content(self, live):
        return {"model": live, "ema_model": self.inner.state_dict()}


class Timm(Average):
    def make(self, model, decay):
        from timm.utils import ModelEmaV3

        self.inner = ModelEmaV3(model, decay=decay)

    def update(self, model):
        self.inner.update(model)

    def tensors(self):
        return list(self.inner.module.parameters())

    def content(self, live):
        average = self.inner.module.state_dict()
        return {"arch": "x", "state_dict": live, "state_dict_ema": average}


class EMAPytorch(Average):
    def make(self, model, decay):
        from ema_pytorch import EMA

        self.inner = EMA(
            model,
            beta=decay,
            update_every=1,
            update_after_step=0,
            inv_gamma=1e-9,  # no warm-up
            include_online_model=False,
        )

    def update(self, model):
        self.inner.online_model[0] = model
        self.inner.update()

    def tensors(self):
        return list(self.inner.ema_model.parameters())

    def content(self, live):
        average = self.inner.state_dict()
        return {"model_state_dict": live, "ema_model_state_dict": average}


class TorchEMA(Average):
    def make(self, model, decay):
        from torch_ema import ExponentialMovingAverage

        self.inner = ExponentialMovingAverage(
            model.parameters(), decay, use_num_updates=False
        )
        self.count = 0

    def update(self, model):
        self.inner.update(model.parameters())
        self.count += 1

    def tensors(self):
        return self.inner.shadow_params

    def content(self, live):
        state = self.inner.state_dict() | {"num_updates": self.count}
        return {"model": live, "ema": state}


class Diffusers(Average):
    def make(self, model, decay):
        from diffusers.training_utils import EMAModel

        self.inner = EMAModel(model.parameters(), decay=decay, min_decay=decay)

    def update(self, model):
        self.inner.step(model.parameters())

    def tensors(self):
        return self.inner.shadow_params

    def content(self, live):
        return {"model": live, "ema": self.inner.state_dict()}


class MMEngine(Average):
    def make(self, model, decay):
        from mmengine.model import ExponentialMovingAverage

        self.inner = ExponentialMovingAverage(
            model, momentum=1 - decay, update_buffers=True
        )

    def update(self, model):
        self.inner.update_parameters(model)

    def tensors(self):
        return list(self.inner.module.parameters())

    def content(self, live):
        return {"model": live, "ema": self.inner.state_dict()}


class Ours(Average):
    def make(self, model, decay):
        from switch_ema import EMA, constant

        self.inner = EMA(model, decay=constant(decay))

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


class Loop(Average):
    """The loop that DiT and many scripts have."""

    def make(self, model, decay):
        self.inner = copy.deepcopy(model).requires_grad_(False)
        self.count = 0

    def update(self, model):
        self.count += 1
        for shadow, value in zip(
            self.inner.parameters(), model.parameters(), strict=True
        ):
            shadow.mul_(self.decay).add_(value.data, alpha=1 - self.decay)
        for shadow, value in zip(self.inner.buffers(), model.buffers(), strict=True):
            shadow.copy_(value)

    def tensors(self):
        return list(self.inner.parameters())

    def content(self, live):
        return {"model": live, "ema": self.inner.state_dict(), "updates": self.count}


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
class Case:
    """A training run whose checkpoints the doctor sees."""

    library: type[Average]
    seed: int
    folder: Path
    decay: float = DECAY
    before_update: Callable[["Case", int], bool] = lambda case, step: True
    """Called after each step; False: the average is not updated."""
    at_save: Callable[["Case", dict[str, Any], int], dict[str, Any]] = (
        lambda case, content, step: content
    )
    saved: tuple[int, ...] = SAVED
    updates: int = 1
    dtype: torch.dtype | None = None
    with_norm: bool = True

    def run(self) -> list[Path]:
        torch.manual_seed(self.seed)
        self.model = network(self.with_norm)
        averaged = self.model
        if self.dtype is not None:
            averaged = copy.deepcopy(self.model).to(self.dtype)
        self.average = self.library(averaged, self.decay)
        if self.dtype is not None and isinstance(self.average, Ours):
            raise ValueError("switch-ema keeps its own dtype")
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        target = network()
        paths = []
        for step in range(1, self.saved[-1] + 1):
            x = torch.randn(16, 8)
            y = target(x).detach() + 0.5 * torch.randn(16, 3)
            nn.functional.mse_loss(self.model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            if self.before_update(self, step):
                for _ in range(self.updates):
                    self.average.update(self._seen())
            if step in self.saved:
                live = {n: v.clone() for n, v in self.model.state_dict().items()}
                content = copy.deepcopy(self.average.content(live))
                path = self.folder / f"step-{step}.pt"
                torch.save(self.at_save(self, content, step), path)
                paths.append(path)
        return paths

    def _seen(self) -> nn.Module:
        if self.dtype is None:
            return self.model
        return copy.deepcopy(self.model).to(self.dtype)


def _parts(content: dict[str, Any]) -> tuple[str, str]:
    """Return the keys of the live weights and of the average."""
    keys = [key for key in content if isinstance(content[key], dict)]
    average = next(key for key in keys if "ema" in key)
    return next(key for key in keys if key != average), average


def _with_average(
    content: dict[str, Any], values: dict[str, torch.Tensor]
) -> dict[str, Any]:
    """Replace the values of the average, in the library's own layout."""
    _, key = _parts(content)
    state = content[key]
    if "shadow_params" in state:
        names = [n for n in values if "running" not in n and "num_batches" not in n]
        state["shadow_params"] = [values[name].clone() for name in names]
        return content
    if "shadow" in state:
        state = state["shadow"]
    for name in state:
        plain = name.removeprefix("module.").removeprefix("ema_model.")
        if plain in values:
            state[name] = values[plain].clone()
    return content


def _own_average(content: dict[str, Any]) -> dict[str, torch.Tensor]:
    live, key = _parts(content)
    state = content[key]
    if "shadow_params" in state:
        names = [
            n for n in content[live] if "running" not in n and "num_batches" not in n
        ]
        own = dict(zip(names, state["shadow_params"], strict=True))
    else:
        state = state.get("shadow", state)
        own = {
            name.removeprefix("module.").removeprefix("ema_model."): value
            for name, value in state.items()
            if isinstance(value, torch.Tensor)
        }
    return content[live] | {n: v for n, v in own.items() if n in content[live]}


def _exchange(case: Case, content: dict[str, Any], step: int) -> dict[str, Any]:
    live, _ = _parts(content)
    own, real = _own_average(content), content[live]
    content = _with_average(content, real)
    content[live] = own
    return content


def _anew(case: Case, step: int) -> bool:
    """The average is made anew on resuming, and its counter begins at zero."""
    if step == 235:
        case.average = case.library(case.model, case.decay)
    return True


def _replace_layer(case: Case, step: int) -> bool:
    if step == 100:
        case.model[3].weight = nn.Parameter(case.model[3].weight.detach().clone())
    return True


def _poison(case: Case, step: int) -> bool:
    if step == 220:
        with torch.no_grad():
            case.model[5].bias[0] = math.nan
    return True


def _prefixed(case: Case, content: dict[str, Any], step: int) -> dict[str, Any]:
    live, _ = _parts(content)
    content[live] = {f"backbone.{n}": v for n, v in content[live].items()}
    return content


def _noise(case: Case, content: dict[str, Any], step: int) -> dict[str, Any]:
    torch.manual_seed(10 * case.seed + step)
    own = {n: torch.randn_like(v.float()) for n, v in _own_average(content).items()}
    return _with_average(content, own)


def _uneven(case: Case, step: int) -> bool:
    """Tied weights under two names: one tensor is averaged twice."""
    case.average.update(case.model)
    shadow = case.average.tensors()[4]
    value = list(case.model.parameters())[4]
    with torch.no_grad():
        shadow.lerp_(value.detach().to(shadow.dtype), 1 - case.decay)
    return False


def _away(case: Case, step: int) -> bool:
    with torch.no_grad():
        for shadow, value in zip(
            case.average.tensors(), case.model.parameters(), strict=True
        ):
            shadow.sub_((1 - case.decay) / 8 * (value - shadow))
    return False


def _stale(case: Case, content: dict[str, Any], step: int) -> dict[str, Any]:
    torch.manual_seed(case.seed)
    initial = network().state_dict()
    own = _own_average(content)
    own |= {n: v for n, v in initial.items() if "running" in n}
    return _with_average(content, own)


def _integers(case: Case, content: dict[str, Any], step: int) -> dict[str, Any]:
    own = _own_average(content)
    name = "1.num_batches_tracked"
    own[name] = (own[name].double() * 0.8).to(own[name].dtype)
    return _with_average(content, own)


def _live_for_average(case: Case, content: dict[str, Any], step: int) -> dict[str, Any]:
    live, _ = _parts(content)
    return _with_average(content, content[live])


def _average_for_live(case: Case, content: dict[str, Any], step: int) -> dict[str, Any]:
    live, _ = _parts(content)
    content[live] = {n: v.clone() for n, v in _own_average(content).items()}
    return content


WITH_BUFFERS = ("torch AveragedModel", "timm", "MMEngine", "switch-ema", "plain loop")
COUNTING = ("torch AveragedModel", "torch_ema", "diffusers", "switch-ema", "plain loop")
"""Libraries whose checkpoints count the updates since the average was made."""
DECLARING = ("torch_ema", "diffusers")
"""Libraries whose checkpoints have the decay."""
FLOATING = ("torch AveragedModel", "timm", "ema-pytorch", "torch_ema", "diffusers",
            "MMEngine", "plain loop")  # fmt: skip

FAULTS: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "never updated": ("frozen", {"before_update": lambda c, s: False}, FLOATING),
    "updates stop": ("frozen", {"before_update": lambda c, s: s < 150}, ()),
    "a copy is followed": (
        "frozen",
        {"before_update": lambda c, s: s < 120},
        (),
    ),
    "decay inverted": ("inverted decay", {"decay": 1 - 0.999}, COUNTING),
    "decay of zero": (
        "equal to live",
        {"decay": 0.0},
        tuple(name for name in FLOATING if name != "MMEngine"),  # which refuses it
    ),
    "live saved as average": ("equal to live", {"at_save": _live_for_average}, ()),
    "average saved as live": ("equal to live", {"at_save": _average_for_live}, ()),
    "exchanged": ("exchanged", {"at_save": _exchange}, FLOATING),
    "bfloat16": (
        "stalled",
        {"dtype": torch.bfloat16, "decay": 0.999},
        ("torch AveragedModel", "torch_ema", "diffusers", "plain loop"),
    ),
    "float16": (
        "stalled",
        {"dtype": torch.float16, "decay": 0.9999},
        ("torch AveragedModel", "torch_ema", "diffusers", "plain loop"),
    ),
    "one tensor twice": ("uneven decay", {"before_update": _uneven}, FLOATING),
    "per micro-batch": ("other decay", {"updates": 4}, DECLARING),
    "every fourth step": (
        "other decay",
        {"before_update": lambda c, s: s % 4 == 0},
        DECLARING,
    ),
    "decay too large": ("initial weights", {"decay": 0.9995}, COUNTING),
    "made anew on resuming": ("restarted", {"before_update": _anew}, COUNTING),
    "NaN": ("not finite", {"before_update": _poison}, ()),
    "other names": ("names", {"at_save": _prefixed}, WITH_BUFFERS),
    "unrelated values": ("not an average", {"at_save": _noise}, FLOATING),
    "wrong sign": ("moving away", {"before_update": _away}, FLOATING),
    "buffers forgotten": ("stale buffers", {"at_save": _stale}, WITH_BUFFERS),
    "integers averaged": (
        "averaged integers",
        {"at_save": _integers},
        tuple(name for name in WITH_BUFFERS if name != "MMEngine"),  # leaves them at 0
    ),
}
"""Expected finding, settings, and libraries (empty: all) by fault."""

DECLARED = {"per micro-batch", "every fourth step"}


def cases(seeds: int) -> Iterator[tuple[str, str, int]]:
    for fault, (_, _, libraries) in FAULTS.items():
        for library in libraries or LIBRARIES:
            for seed in range(seeds):
                yield fault, library, seed


def examine(fault: str, library: str, seed: int, folder: Path) -> Diagnosis:
    _, settings, _ = FAULTS[fault]
    case = Case(LIBRARIES[library], seed, folder, **settings)
    # Counters tell the steps where the fault leaves them right.
    return diagnose(case.run(), steps=50 if fault in DECLARED else None)


def healthy(library: str, seed: int, folder: Path, decay: float) -> Diagnosis:
    # With use_buffers=True, torch averages the counters of batch norm, too.
    with_norm = library != "torch AveragedModel"
    case = Case(LIBRARIES[library], seed, folder, decay=decay, with_norm=with_norm)
    return diagnose(case.run())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    named: dict[str, list[int]] = {}
    for fault, library, seed in cases(arguments.seeds):
        with tempfile.TemporaryDirectory() as folder:
            result = examine(fault, library, seed, Path(folder))
        names = [finding.fault.name for finding in result.findings]
        hit = FAULTS[fault][0] in names
        counts = named.setdefault(fault, [0, 0, 0])
        counts[0] += hit
        counts[1] += bool(names) and not hit
        counts[2] += 1
        if not hit:
            print("missed", fault, library, seed, names, result.unknown, flush=True)
    alarms, sound = 0, 0
    for library in LIBRARIES:
        for decay in (0.9, 0.95, 0.98):
            for seed in range(100, 100 + arguments.seeds):
                with tempfile.TemporaryDirectory() as folder:
                    result = healthy(library, seed, Path(folder), decay)
                sound += 1
                alarms += bool(result.findings)
                if result.findings:
                    print("alarm", library, decay, seed, *result.findings, flush=True)
    for fault, (hit, wrong, count) in named.items():
        print(f"{fault:24s} {hit}/{count} named, {wrong} under another name")
    print(f"healthy: {alarms} findings in {sound}")
    if arguments.json:
        content = {"faults": named, "healthy": [alarms, sound]}
        arguments.json.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
