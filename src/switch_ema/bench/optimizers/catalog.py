"""Optimizers by name.

A new optimizer is one row of ``OPTIMIZERS``. Options are the keyword arguments of the
class (``sgd:lr=0.05,nesterov=True``); rows list only defaults that differ from the
class.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from switch_ema._checks import check_positive
from switch_ema._extras import needed
from switch_ema.bench.errors import UsageError
from switch_ema.bench.spec import Spec
from switch_ema.bench.text import unknown

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


@dataclass(frozen=True)
class OptimizerInfo:
    """An entry of the catalog."""

    name: str
    description: str
    source: str
    """Module of the class; imported on use."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Defaults that differ from the class."""
    two_pass: bool = False
    """A step needs the gradients twice: see ``take_step``."""
    has_modes: bool = False
    """Trains and evaluates with different weights: see ``set_mode``."""
    elementwise: bool = True
    """Elementwise: stacked models train as if alone."""
    averaging: str | None = None
    """The averaging method that belongs to it."""

    @property
    def passes(self) -> int:
        """Forward-backward passes per step."""
        return 2 if self.two_pass else 1

    def load(self) -> "Callable[..., Optimizer]":
        """Import the class."""
        loaded: Callable[..., Optimizer] = _load(self.source, needed_by=self.name)
        return loaded


_SAM_OPTIONS = ("rho", "adaptive")
_ROWS = (
    OptimizerInfo(
        "sgd", "momentum SGD", "torch.optim.SGD", {"lr": 0.1, "momentum": 0.9}
    ),
    OptimizerInfo("adam", "Adam", "torch.optim.Adam", {"lr": 1e-3}),
    OptimizerInfo("adamw", "Adam, decay decoupled", "torch.optim.AdamW", {"lr": 1e-3}),
    # With weight decay 0, timm's LARS and LAMB adapt no rate unless asked to.
    OptimizerInfo(
        "lars",
        "SGD, rate adapted to each layer's norms",
        "timm.optim.Lars",
        {"lr": 1.0, "momentum": 0.9, "always_adapt": True},
        elementwise=False,
    ),
    OptimizerInfo(
        "lamb",
        "Adam, rate adapted to each layer's norms",
        "timm.optim.Lamb",
        {"lr": 5e-3, "always_adapt": True},
        elementwise=False,
    ),
    OptimizerInfo(
        "adan", "Adam with Nesterov momentum", "timm.optim.Adan", {"lr": 1e-3}
    ),
    OptimizerInfo(
        "adabelief", "Adam by belief in the slope", "timm.optim.AdaBelief", {"lr": 1e-3}
    ),
    OptimizerInfo("radam", "rectified Adam", "torch.optim.RAdam", {"lr": 1e-3}),
    # Without this flag the class ascends until it can estimate the variance.
    OptimizerInfo(
        "ranger",
        "RAdam, Lookahead and centred gradients",
        "pytorch_optimizer.Ranger",
        {"lr": 1e-3, "degenerated_to_sgd": True},
        elementwise=False,
    ),
    _SAM := OptimizerInfo(
        "sam",
        "sharpness-aware, around the optimizer given as base",
        "switch_ema.bench.optimizers.sam.SAM",
        {"base": "sgd", "rho": 0.05},
        two_pass=True,
        elementwise=False,
    ),
    replace(_SAM, name="sasam", description="SAM, averaged by SWA", averaging="swa"),
    OptimizerInfo(
        "schedulefree-sgd",
        "SGD that averages instead of scheduling",
        "schedulefree.SGDScheduleFree",
        {"lr": 1.0},
        has_modes=True,
    ),
    OptimizerInfo(
        "schedulefree-adamw",
        "AdamW that averages instead of scheduling",
        "schedulefree.AdamWScheduleFree",
        {"lr": 2.5e-3},
        has_modes=True,
    ),
)
OPTIMIZERS: dict[str, OptimizerInfo] = {row.name: row for row in _ROWS}
assert len(OPTIMIZERS) == len(_ROWS), "two optimizers have the same name"


def optimizer_info(name: str) -> OptimizerInfo:
    """Look up an optimizer by name."""
    if name not in OPTIMIZERS:
        raise unknown("optimizer", name, OPTIMIZERS)
    return OPTIMIZERS[name]


def check_optimizer(spec: Spec) -> OptimizerInfo:
    """Check the name and the option names, before any model is built."""
    info = optimizer_info(spec.name)
    valid = _valid_options(spec)
    others = [option for option in spec.options if option not in valid]
    if others:
        raise UsageError(
            f"{spec.name} has no option {', '.join(others)}; "
            f"valid ones are {', '.join(valid)}."
        )
    return info


def options_in_common() -> tuple[str, ...]:
    """List the settings that a task's own optimizer, one of torch's, may have.

    >>> [name for name in ("lr", "weight_decay") if name in options_in_common()]
    ['lr', 'weight_decay']
    """
    own = [_valid_options(Spec(name)) for name in ("sgd", "adam", "adamw")]
    return tuple(dict.fromkeys(option for options in own for option in options))


def choose_optimizer(name: str | None, layer_decay: float | None) -> str | None:
    """Return the optimizer to create, or None for the task's own.

    Layer decay needs parameter groups, which a task's own optimizer lacks.
    """
    return name or (None if layer_decay is None else "adamw")


def describe_optimizer(name: str | None, layer_decay: float | None) -> str:
    """Describe the optimizer for a report.

    >>> describe_optimizer(None, 0.75)
    "adamw:lr=0.001 (not the task's own optimizer) with layer decay 0.75"
    """
    chosen = choose_optimizer(name, layer_decay)
    if chosen is None:
        return "the task's own optimizer"
    if layer_decay is None:
        return chosen
    if name is None:
        defaults = Spec(chosen, OPTIMIZERS[chosen].defaults)
        chosen = f"{defaults} (not the task's own optimizer)"
    return f"{chosen} with layer decay {layer_decay}"


def create_optimizer(
    spec: Spec,
    model: "nn.Module",
    *,
    layer_decay: float | None = None,
    decay_all: bool = True,
) -> "Optimizer":
    """Create an optimizer for the model's trainable parameters.

    Args:
        spec: Name and options.
        model: What to train.
        layer_decay: Factor of the learning rate per layer, counted from the output.
            Implies ``decay_all=False``.
        decay_all: Whether every tensor has weight decay; otherwise those of
            ``is_exempt`` have none, and LARS and LAMB do not adapt their rates.

    >>> from torch import nn
    >>> create_optimizer(Spec("sgd", {"lr": 0.5}), nn.Linear(1, 1)).defaults["lr"]
    0.5
    """
    from switch_ema.bench.optimizers.groups import parameter_groups  # imports torch
    from switch_ema.bench.optimizers.sam import SAM
    from switch_ema.bench.optimizers.step import set_mode

    info = check_optimizer(spec)
    options = {**info.defaults, **spec.options}
    try:
        if info.two_pass:
            base, own = _split(spec)
            inner = create_optimizer(
                base, model, layer_decay=layer_decay, decay_all=decay_all
            )
            return SAM(inner, **own)
        make = info.load()
        if layer_decay is None:
            fixed = {"always_adapt": False} if "always_adapt" in options else {}
            groups = parameter_groups(model, decay_all=decay_all, **fixed)
        else:
            standard = inspect.signature(make).parameters["weight_decay"].default
            weight_decay = options.get("weight_decay", standard)
            groups = _layer_groups(model, options["lr"], weight_decay, layer_decay)
        optimizer = make(groups, **options)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{spec}: {error}") from error
    set_mode(optimizer, training=True)
    return optimizer


def _split(spec: Spec) -> tuple[Spec, dict[str, Any]]:
    """Separate the options of SAM's base from SAM's own."""
    options = {**OPTIMIZERS[spec.name].defaults, **spec.options}
    base = optimizer_info(str(options.pop("base")))
    if base.two_pass or base.has_modes:
        raise UsageError(f"{spec.name} cannot have {base.name} as its base.")
    own = {key: options.pop(key) for key in _SAM_OPTIONS if key in options}
    return Spec(base.name, options), own


def _valid_options(spec: Spec) -> tuple[str, ...]:
    info = OPTIMIZERS[spec.name]
    if info.two_pass:
        return ("base", *_SAM_OPTIONS, *_valid_options(_split(spec)[0]))
    parameters = inspect.signature(info.load()).parameters.values()
    named = (p.name for p in parameters if p.kind is not p.VAR_KEYWORD)
    return tuple(name for name in named if name != "params")


def _layer_groups(
    model: "nn.Module", lr: float, weight_decay: float, layer_decay: float
) -> list[dict[str, Any]]:
    from switch_ema.bench.optimizers.groups import exempt_names  # imports torch

    make = _load("timm.optim.param_groups_layer_decay", needed_by="layer_decay")
    groups: list[dict[str, Any]] = make(
        model,
        weight_decay=weight_decay,
        no_weight_decay_list=exempt_names(model),
        layer_decay=check_positive("layer_decay", layer_decay),
    )
    if layer_decay != 1 and all(group["lr_scale"] == 1 for group in groups):
        raise UsageError(
            f"layer_decay needs a model with ordered layers; {type(model).__name__} "
            "lacks the method group_matcher of timm models."
        )
    for group in groups:
        # timm applies this factor in its schedulers, which we do not use.
        group["lr"] = lr * group.pop("lr_scale")
    return groups


def _load(path: str, *, needed_by: str) -> Any:
    module, _, name = path.rpartition(".")
    with needed(None, "optimizers", user=needed_by, error=UsageError):
        return getattr(import_module(module), name)
