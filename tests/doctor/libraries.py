"""Checkpoints of other libraries, trained and written by their own code.

Each writer trains a small network for a few steps with a library's average, writes a
checkpoint as the library's users do, and returns the live and the averaged weights as
the library itself loads them.
"""

import argparse
import copy
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

DECAY = 0.9
STEPS = 12


@dataclass
class Written:
    path: Path
    live: dict[str, torch.Tensor]
    average: dict[str, torch.Tensor]


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)
    )


def train(
    model: nn.Module, after_step: Callable[[], object], steps: int = STEPS
) -> torch.optim.Optimizer:
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(steps):
        x, y = torch.randn(8, 1, 4, 4), torch.randint(3, (8,))
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        after_step()
    return optimizer


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def ours(folder: Path) -> Written:
    from switch_ema import EMA

    model = network()
    ema = EMA(model, decay=DECAY)
    optimizer = train(model, ema.update)
    state = {"model": ema.live_state_dict(), "ema": ema.state_dict()}
    path = folder / "ours.pt"
    torch.save(state | {"optimizer": optimizer.state_dict()}, path)
    return Written(path, weights(model), ema.averaged_state_dict())


def averaged_model(folder: Path) -> Written:
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    model = network()
    average = AveragedModel(
        model, multi_avg_fn=get_ema_multi_avg_fn(DECAY), use_buffers=True
    )
    train(model, lambda: average.update_parameters(model))
    path = folder / "swa.pt"
    torch.save({"model": model.state_dict(), "swa_model": average.state_dict()}, path)
    return Written(path, weights(model), weights(average.module))


def timm(folder: Path) -> Written:
    from timm.utils import CheckpointSaver, ModelEmaV3

    model = network()
    average = ModelEmaV3(model, decay=DECAY)
    optimizer = train(model, lambda: average.update(model))
    arguments = argparse.Namespace(model="tiny", lr=1e-2)
    saver = CheckpointSaver(
        model,
        optimizer,
        args=arguments,
        model_ema=average,
        checkpoint_dir=str(folder),
        recovery_dir=str(folder),
    )
    saver.save_checkpoint(0, metric=1.0)
    return Written(folder / "last.pth.tar", weights(model), weights(average.module))


def ema_pytorch(folder: Path) -> Written:
    from ema_pytorch import EMA

    model = network()
    average = EMA(model, beta=DECAY, update_every=1, update_after_step=0)
    train(model, average.update)
    path = folder / "ema-pytorch.pt"
    torch.save({"ema_model_state_dict": average.state_dict()}, path)
    return Written(path, weights(model), weights(average.ema_model))


def torch_ema(folder: Path) -> Written:
    from torch_ema import ExponentialMovingAverage

    model = network()
    average = ExponentialMovingAverage(model.parameters(), DECAY)
    train(model, average.update)
    path = folder / "torch-ema.pt"
    torch.save({"model": model.state_dict(), "ema": average.state_dict()}, path)
    live = weights(model)
    with average.average_parameters():
        return Written(path, live, weights(model))


def diffusers_state(folder: Path) -> Written:
    from diffusers.training_utils import EMAModel

    model = network()
    average = EMAModel(model.parameters(), decay=DECAY)
    train(model, lambda: average.step(model.parameters()))
    path = folder / "diffusers.pt"
    torch.save({"model": model.state_dict(), "ema": average.state_dict()}, path)
    live = weights(model)
    average.copy_to(model.parameters())
    return Written(path, live, weights(model))


def lit_ema(folder: Path) -> Written:
    """The rule of Stable Diffusion's LitEma, whose package is not on the index."""
    model = network()
    root = nn.Module()
    root.model = nn.Module()
    root.model.diffusion_model = model
    inner = dict(root.model.named_parameters())
    average = {name.replace(".", ""): p.detach().clone() for name, p in inner.items()}

    def update() -> None:
        for name, parameter in inner.items():
            shadow = average[name.replace(".", "")]
            shadow.sub_((1 - DECAY) * (shadow - parameter.detach()))

    train(model, update)
    state = {name: value.clone() for name, value in root.state_dict().items()}
    live = dict(state)
    state |= {f"model_ema.{name}": value for name, value in average.items()}
    state["model_ema.decay"] = torch.tensor(DECAY)
    state["model_ema.num_updates"] = torch.tensor(STEPS, dtype=torch.int32)
    path = folder / "lit-ema.ckpt"
    torch.save({"state_dict": state, "pytorch-lightning_version": "1.4.2"}, path)
    prefix = "model."
    named = {prefix + name: average[name.replace(".", "")] for name in inner}
    return Written(path, live, named)


def pickled_module(folder: Path) -> Written:
    """As ultralytics does: whole modules, of classes that the reader may not have."""
    name = "ultralytics.nn.tasks"
    module = types.ModuleType(name)

    class DetectionModel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = network()
            self.names = {0: "cat"}

    DetectionModel.__module__ = name
    DetectionModel.__qualname__ = "DetectionModel"
    module.DetectionModel = DetectionModel
    parents = [types.ModuleType("ultralytics"), types.ModuleType("ultralytics.nn")]
    added = {each.__name__: each for each in (*parents, module)}
    sys.modules.update(added)
    try:
        live, average = DetectionModel(), DetectionModel()
        train(live.model, lambda: None)
        for shadow, value in zip(average.parameters(), live.parameters(), strict=True):
            shadow.data.lerp_(value.data, 0.5)
        path = folder / "last.pt"
        arguments = argparse.Namespace(lr=1e-2)
        content = {"epoch": 3, "model": live, "ema": average, "updates": STEPS}
        torch.save(content | {"train_args": arguments}, path)
    finally:
        for each in added:
            del sys.modules[each]
    return Written(path, weights(live), weights(average))


def dit(folder: Path) -> Written:
    model = network()
    average = copy.deepcopy(model).requires_grad_(False)

    def update() -> None:
        for shadow, value in zip(average.parameters(), model.parameters(), strict=True):
            shadow.mul_(DECAY).add_(value.data, alpha=1 - DECAY)

    optimizer = train(model, update)
    path = folder / "dit.pt"
    content = {"model": model.state_dict(), "ema": average.state_dict()}
    content["opt"] = optimizer.state_dict()
    torch.save(content | {"args": argparse.Namespace(model="DiT-XL/2")}, path)
    return Written(path, weights(model), weights(average))


def mmengine(folder: Path) -> Written:
    from mmengine.hooks import EMAHook
    from mmengine.model import ExponentialMovingAverage

    model = network()
    average = ExponentialMovingAverage(model, momentum=1 - DECAY)
    train(model, lambda: average.update_parameters(model))
    live, mean = weights(model), weights(average.module)
    hook = EMAHook()
    hook.ema_model = average
    content = {"state_dict": model.state_dict(), "meta": {"mmengine_version": "1"}}
    hook.before_save_checkpoint(None, content)  # exchanges the two
    path = folder / "mmengine.pth"
    torch.save(content, path)
    return Written(path, live, mean)


WRITERS: dict[str, Callable[[Path], Written]] = {
    "switch-ema": ours,
    "torch AveragedModel": averaged_model,
    "timm": timm,
    "ema-pytorch": ema_pytorch,
    "torch_ema": torch_ema,
    "diffusers": diffusers_state,
    "LitEma": lit_ema,
    "ultralytics": pickled_module,
    "DiT": dit,
    "MMEngine": mmengine,
}
