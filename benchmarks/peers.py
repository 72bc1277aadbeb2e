"""The contestants: every implementation behind the same three calls.

Each peer is configured so that every call averages with the constant decay 0.999: no
warm-up, no skipped steps, multi-tensor kernels where available. :func:`check` verifies
this before any timing, because a peer that silently skips updates looks fast.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from models import averaged_elements
from torch import Tensor, nn

from switch_ema import SwitchEMA, constant

DECAY = 0.999
FLAT = "one flat lerp_"
"""The lower limit of an update, and the unit of every table."""
FLAT_COPY = "one flat copy_"
"""The lower limit of a switch."""
FLAT_LAYOUT = "SwitchEMA, flat"

Call = Callable[[], object]


@dataclass(frozen=True)
class Entry:
    """A contestant running on one model."""

    update: Call
    probe: Callable[[str], tuple[Tensor, Tensor]]
    """Returns the live and the averaged value of a parameter by name."""
    switch: Call | None = None
    """Copy the average into the live weights; None if the peer has no such call."""
    averaged: Call | None = None
    """Swap the average into the model and out again; None likewise."""


@dataclass(frozen=True)
class Contestant:
    """How to start an implementation."""

    name: str
    build: Callable[[nn.Module], Entry]
    package: str
    averages_buffers: bool = True


def flat_lerp(model: nn.Module) -> Entry:
    """Move as much memory as an average of the model, in one call."""
    live = torch.randn(averaged_elements(model))
    shadow = live.clone()
    return Entry(
        update=lambda: shadow.lerp_(live, 1 - DECAY),
        probe=lambda name: (live, shadow),
        switch=lambda: live.copy_(shadow),
    )


def switch_ema(model: nn.Module, **options: Any) -> Entry:
    ema = SwitchEMA(model, decay=constant(DECAY), **options)

    def averaged() -> None:
        with ema.averaged():
            pass

    def probe(name: str) -> tuple[Tensor, Tensor]:
        return model.get_parameter(name), ema.averaged_state_dict()[name]

    return Entry(ema.update, probe, ema.switch, averaged)


def timm_v3(model: nn.Module) -> Entry:
    from timm.utils import ModelEmaV3

    ema = ModelEmaV3(model, decay=DECAY, foreach=True)
    return Entry(lambda: ema.update(model), _probe_module(model, ema.module))


def ema_pytorch(model: nn.Module) -> Entry:
    from ema_pytorch import EMA

    # min_value raises its warm-up to the final decay.
    ema = EMA(
        model,
        beta=DECAY,
        min_value=DECAY,
        update_after_step=0,
        update_every=1,
        use_foreach=True,
    )
    probe = _probe_module(model, ema.ema_model)
    return Entry(ema.update, probe, switch=ema.update_model_with_ema)


def torch_averaged_model(model: nn.Module) -> Entry:
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    ema = AveragedModel(
        model, multi_avg_fn=get_ema_multi_avg_fn(DECAY), use_buffers=True
    )
    probe = _probe_module(model, ema.module)
    return Entry(lambda: ema.update_parameters(model), probe)


def torch_ema(model: nn.Module) -> Entry:
    from torch_ema import ExponentialMovingAverage

    ema = ExponentialMovingAverage(
        model.parameters(), decay=DECAY, use_num_updates=False
    )

    def averaged() -> None:
        with ema.average_parameters():
            pass
        # It keeps the stored weights; free them here, not in the next call.
        ema.collected_params = None

    probe = _probe_list(model, ema.shadow_params)
    return Entry(ema.update, probe, ema.copy_to, averaged)


def diffusers(model: nn.Module, foreach: bool) -> Entry:
    from diffusers.training_utils import EMAModel

    # min_decay raises its warm-up to the final decay, from the second step on.
    ema = EMAModel(model.parameters(), decay=DECAY, min_decay=DECAY, foreach=foreach)

    def averaged() -> None:
        ema.store(model.parameters())
        ema.copy_to(model.parameters())
        ema.restore(model.parameters())

    return Entry(
        update=lambda: ema.step(model.parameters()),
        probe=_probe_list(model, ema.shadow_params),
        switch=lambda: ema.copy_to(model.parameters()),
        averaged=averaged,
    )


def mmengine(model: nn.Module) -> Entry:
    from mmengine.hooks import EMAHook
    from mmengine.model import ExponentialMovingAverage

    ema = ExponentialMovingAverage(model, momentum=1 - DECAY, update_buffers=True)
    # What the hook does in before_run, without a runner.
    hook = EMAHook()
    hook.src_model, hook.ema_model = model, ema

    def averaged() -> None:
        hook.before_val_epoch(None)
        hook.after_val_epoch(None)

    probe = _probe_module(model, ema.module)
    return Entry(lambda: ema.update_parameters(model), probe, averaged=averaged)


CONTESTANTS = (
    Contestant(FLAT, flat_lerp, "torch"),
    Contestant("SwitchEMA", switch_ema, "switch-ema"),
    Contestant(FLAT_LAYOUT, partial(switch_ema, flat=True), "switch-ema"),
    Contestant(
        "SwitchEMA, bfloat16",
        partial(switch_ema, dtype=torch.bfloat16),
        "switch-ema",
    ),
    Contestant("timm ModelEmaV3", timm_v3, "timm"),
    Contestant("ema-pytorch, foreach", ema_pytorch, "ema-pytorch"),
    Contestant("torch AveragedModel", torch_averaged_model, "torch"),
    Contestant("torch_ema", torch_ema, "torch-ema", False),
    Contestant(
        "diffusers, foreach", partial(diffusers, foreach=True), "diffusers", False
    ),
    Contestant(
        "diffusers, plain", partial(diffusers, foreach=False), "diffusers", False
    ),
    Contestant("mmengine", mmengine, "mmengine"),
)


@torch.no_grad()
def check(name: str, entry: Entry, model: nn.Module) -> None:
    """Raise unless an update moves the average by ``1 - DECAY`` of the distance."""
    # Several peers just copy on their first call.
    entry.update()
    entry.update()
    parameter = _probed_parameter(model)
    live, shadow = entry.probe(parameter)
    live.add_(1.0)
    before = shadow.double()
    distance = live.double() - before
    entry.update()
    moved = entry.probe(parameter)[1].double() - before
    # Use means: bfloat16 rounds single elements randomly, which averages out.
    share = (moved.mean() / distance.mean()).item()
    rounding = (moved.std() / moved.numel() ** 0.5 / distance.mean()).item()
    if abs(share - (1 - DECAY)) > 0.01 * (1 - DECAY) + 5 * rounding:
        raise RuntimeError(
            f"{name} moved {parameter} by {share:.6f} of its distance to the live "
            f"weights, expected {1 - DECAY:.6f}, so its time is invalid."
        )
    if entry.switch is not None:
        entry.switch()
        live, shadow = entry.probe(parameter)
        if not torch.equal(live, shadow):
            raise RuntimeError(f"{name} did not copy its average of {parameter}.")


def _probed_parameter(model: nn.Module) -> str:
    """Choose the largest parameter that is not tied.

    Peers that average a state dict update a tied weight twice; that is their bug, not
    a matter of their settings.
    """
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    untied = [found[0] for found in names.values() if len(found) == 1]
    return max(untied, key=lambda name: model.get_parameter(name).numel())


def _probe_module(
    model: nn.Module, averaged: nn.Module
) -> Callable[[str], tuple[Tensor, Tensor]]:
    return lambda name: (model.get_parameter(name), averaged.get_parameter(name))


def _probe_list(
    model: nn.Module, averages: list[Tensor]
) -> Callable[[str], tuple[Tensor, Tensor]]:
    def probe(name: str) -> tuple[Tensor, Tensor]:
        live = model.get_parameter(name)
        index = [id(parameter) for parameter in model.parameters()].index(id(live))
        return live, averages[index]

    return probe
