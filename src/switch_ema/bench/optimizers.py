"""Optimizers by name, and one step of any of them.

A new optimizer is one row of ``OPTIMIZERS``. Options are the keyword arguments of the
class behind the name (``sgd:lr=0.05,nesterov=True``); the rows give the defaults that
differ from that class's own.
"""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from switch_ema.averaging.validation import check_positive, check_range
from switch_ema.bench.spec import Spec, UsageError


@dataclass(frozen=True)
class OptimizerInfo:
    """What the bench has to know about an optimizer."""

    name: str
    description: str
    source: str
    """Where the class comes from; imported when it is used."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Options where they differ from the class's own."""
    two_pass: bool = False
    """A step needs the gradients twice: see ``take_step``."""
    has_modes: bool = False
    """Trains and evaluates with different weights: see ``set_mode``."""
    elementwise: bool = True
    """Treats each element by itself, so that stacked models train as if alone."""
    averaging: str | None = None
    """The averaging method that belongs to it."""

    def load(self) -> Callable[..., Optimizer]:
        """Import the class."""
        module, _, name = self.source.rpartition(".")
        try:
            loaded: Callable[..., Optimizer] = getattr(import_module(module), name)
        except ModuleNotFoundError as error:
            raise UsageError(
                f"{self.name} needs {error.name}: pip install 'switch-ema[bench]'."
            ) from error
        return loaded


_SAM_OPTIONS = ("rho", "adaptive")
_ROWS = (
    OptimizerInfo(
        "sgd", "momentum SGD", "torch.optim.SGD", {"lr": 0.1, "momentum": 0.9}
    ),
    OptimizerInfo("adam", "Adam", "torch.optim.Adam", {"lr": 1e-3}),
    OptimizerInfo("adamw", "Adam, decay decoupled", "torch.optim.AdamW", {"lr": 1e-3}),
    # Where weight decay is 0, timm's LARS and LAMB adapt no rate unless told to.
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
    # Unless told to degenerate, this class climbs until it can estimate the variance.
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
        f"{__name__}.SAM",
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
    """Look an optimizer up by its name."""
    if name not in OPTIMIZERS:
        raise UsageError(
            f"optimizer must be one of {', '.join(OPTIMIZERS)}, got {name!r}."
        )
    return OPTIMIZERS[name]


def check_optimizer(spec: Spec) -> OptimizerInfo:
    """Check the name and the names of the options, before any model is made."""
    info = optimizer_info(spec.name)
    valid = _valid_options(spec)
    unknown = [option for option in spec.options if option not in valid]
    if unknown:
        raise UsageError(
            f"{spec.name} has no option {', '.join(unknown)}; "
            f"valid ones are {', '.join(valid)}."
        )
    return info


def create_optimizer(
    spec: Spec, model: nn.Module, *, layer_decay: float | None = None
) -> Optimizer:
    """Make an optimizer of the model's trainable parameters, ready for a step.

    Args:
        spec: Name and options.
        model: What to train.
        layer_decay: Factor of the learning rate per layer, counted from the output.
            Biases and other one-dimensional parameters then have no weight decay.

    >>> create_optimizer(Spec("sgd", {"lr": 0.5}), nn.Linear(1, 1)).defaults["lr"]
    0.5
    """
    info = check_optimizer(spec)
    options = {**info.defaults, **spec.options}
    try:
        if info.two_pass:
            base, own = _split(spec)
            return SAM(create_optimizer(base, model, layer_decay=layer_decay), **own)
        make = info.load()
        if layer_decay is None:
            groups = [{"params": [p for p in model.parameters() if p.requires_grad]}]
        else:
            standard = inspect.signature(make).parameters["weight_decay"].default
            weight_decay = options.get("weight_decay", standard)
            groups = _layer_groups(model, options["lr"], weight_decay, layer_decay)
        optimizer = make(groups, **options)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{spec}: {error}") from error
    set_mode(optimizer, training=True)
    return optimizer


def has_modes(optimizer: Optimizer) -> bool:
    """Whether it trains and evaluates with different weights (schedule-free)."""
    return hasattr(_unwrap(optimizer), "train")


def set_mode(optimizer: Optimizer, *, training: bool) -> None:
    """Put the weights for training, or those for evaluation, into the model.

    Only does something where ``has_modes``. Do it outside of ``averaged()``, because
    it writes the weights; it rounds, so a round trip may change the last bit.
    """
    if has_modes(optimizer):
        inner: Any = _unwrap(optimizer)
        inner.train() if training else inner.eval()


def take_step(
    optimizer: Optimizer, model: nn.Module, compute_gradients: Callable[[], Tensor]
) -> Tensor:
    """Clear the gradients, compute them and step; for SAM, in two passes.

    SAM's second pass leaves the running statistics of normalisation layers alone, as
    they belong to the weights, not to the perturbed ones. The weights are restored
    whatever happens in it, also if a gradient scaler skips the step.

    Args:
        optimizer: Bare, or as prepared by Accelerate.
        model: Its parameters are those of the optimizer.
        compute_gradients: Runs forward and backward on one (accumulated) batch,
            without clearing gradients, and returns the loss.

    Returns:
        The loss at the weights before the step, detached.
    """
    optimizer.zero_grad()
    loss = compute_gradients().detach()
    sam = _unwrap(optimizer)
    if not isinstance(sam, SAM):
        optimizer.step()
        return loss
    sam.first_step()
    try:
        optimizer.zero_grad()
        with _frozen_statistics(model):
            compute_gradients()
        optimizer.step()
    finally:
        sam.restore()
    return loss


class SAM(Optimizer):
    """Sharpness-aware minimisation around another optimizer (Foret et al., 2021).

    With the gradient ``g`` at the weights ``w``::

        first_step:   v = w + rho * g / |g|                  the worst point nearby
        second_step:  w = base step from w with the gradient at v

    or, if adaptive, ``v = w + rho * w**2 * g / |w * g|`` (Kwon et al., 2021). Shares
    parameter groups and state with the base, so that schedules and checkpoints need
    not know of it. Step hooks run once, at the end of the second step.
    """

    def __init__(
        self, base: Optimizer, *, rho: float = 0.05, adaptive: bool = False
    ) -> None:
        self.rho = check_range("rho", rho, 0, math.inf)
        self.adaptive = adaptive
        self.base = base
        self._saved: list[tuple[Tensor, Tensor]] | None = None
        super().__init__(base.param_groups, base.defaults)
        self._share()

    @torch.no_grad()
    def first_step(self) -> None:
        """Climb to the worst point nearby, for the gradients there."""
        if self._saved is not None:
            raise RuntimeError("first_step() was called twice; call second_step().")
        params = [p for group in self.param_groups for p in group["params"]]
        params = [p for p in params if p.grad is not None]
        slopes = [p.grad * p.abs() if self.adaptive else p.grad for p in params]
        norm = nn.utils.get_total_norm(slopes)
        self._saved = [(p, p.clone()) for p in params]
        for p, slope in zip(params, slopes, strict=True):
            ascent = slope * (self.rho / (norm + 1e-12)).to(p.device)
            p.add_(ascent * p.abs() if self.adaptive else ascent)

    def second_step(self) -> None:
        """Go back and step with the gradients found up there."""
        self.step()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Finish the step, or do all of it with a closure that computes gradients."""
        loss = None
        try:
            if closure is not None:
                loss = self._climb(closure)
            elif self._saved is None:
                raise RuntimeError("call first_step() before, or give step a closure.")
        finally:
            self.restore()
        self.base.step()
        return loss

    def restore(self) -> None:
        """Go back to the weights before ``first_step``, if not yet done."""
        with torch.no_grad():
            for p, before in self._saved or ():
                p.copy_(before)
        self._saved = None

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the base."""
        return self.base.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state of the base."""
        self.base.load_state_dict(state_dict)
        self._share()

    def _share(self) -> None:
        self.param_groups, self.state = self.base.param_groups, self.base.state

    def _climb(self, closure: Callable[[], Any]) -> Any:
        with torch.enable_grad():
            loss = closure()
            self.first_step()
            self.zero_grad()
            closure()
        return loss


def _split(spec: Spec) -> tuple[Spec, dict[str, Any]]:
    """Tell the options of SAM's base from SAM's own."""
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
    model: nn.Module, lr: float, weight_decay: float, layer_decay: float
) -> list[dict[str, Any]]:
    from timm.optim import param_groups_layer_decay  # type: ignore[attr-defined]

    groups: list[dict[str, Any]] = param_groups_layer_decay(
        model,
        weight_decay=weight_decay,
        no_weight_decay_list=getattr(model, "no_weight_decay", set)(),
        layer_decay=check_positive("layer_decay", layer_decay),
    )
    for group in groups:
        # timm leaves this product to its own schedules, which we do not use.
        group["lr"] = lr * group.pop("lr_scale")
    if layer_decay != 1 and all(group["lr"] == lr for group in groups):
        raise UsageError(
            f"layer_decay needs a model with ordered layers: {type(model).__name__} "
            "has no method group_matcher, as timm's models have."
        )
    return groups


def _unwrap(optimizer: Optimizer) -> Optimizer:
    """Take off the wrapper that Accelerate puts around an optimizer."""
    inner: Optimizer = getattr(optimizer, "optimizer", optimizer)
    return inner


@contextmanager
def _frozen_statistics(model: nn.Module) -> Iterator[None]:
    """Normalise by the batch without recording its statistics.

    Unlike a momentum of 0 this also holds back the count of batches.
    """
    recording: list[Any] = [
        module
        for module in model.modules()
        if module.training and getattr(module, "track_running_stats", False)
    ]
    for module in recording:
        module.track_running_stats = False
    try:
        yield
    finally:
        for module in recording:
            module.track_running_stats = True
