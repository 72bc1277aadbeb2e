"""All methods by name, and the options that they take."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypedDict

import torch
from torch import nn

from switch_ema.averaging import contrib, methods
from switch_ema.averaging.averager import Averager
from switch_ema.averaging.model.slots import Filter
from switch_ema.averaging.schedules.intervals import ScheduleLike
from switch_ema.averaging.schedules.spelling import DecayLike
from switch_ema.averaging.schedules.start import StartLike
from switch_ema.averaging.shadow.storage import Buffers
from switch_ema.averaging.step.hooks import Optimizers, OptimizerState
from switch_ema.averaging.step.rounds import Count

if TYPE_CHECKING:
    from typing_extensions import Unpack


class MethodOptions(TypedDict, total=False):
    """The options of all methods, for type checkers.

    A method's signature shows which of them it takes.
    """

    decay: DecayLike
    update_every: int
    switch_every: ScheduleLike
    switch_start: float
    switch_stop: float | None
    live_share: float
    optimizer_state: OptimizerState
    start: StartLike
    every: ScheduleLike
    period: ScheduleLike
    k: int
    rank: int
    alpha: float
    momentum: float
    strength: float
    kappa: float
    rate: float | None
    eta: float
    rho: float
    gamma: float
    share: float
    folder: str | Path
    sigma_rel: Sequence[float]
    buffers: Buffers
    dtype: torch.dtype | None
    device: torch.device | str | None
    include: Filter
    exclude: Filter
    flat: bool
    steps_per_epoch: int | None
    count: Count


def _by_name(*packages: ModuleType) -> dict[str, type[Averager]]:
    """Return the methods that packages export; two of one name are an error."""
    found: dict[str, type[Averager]] = {}
    for package in packages:
        for exported in package.__all__:
            method = getattr(package, exported)
            if not (isinstance(method, type) and issubclass(method, Averager)):
                continue  # a schedule or a function that goes with a method
            if found.setdefault(method.name, method) is not method:
                raise ValueError(f"Two methods have the name {method.name!r}.")
    return found


METHODS: dict[str, type[Averager]] = _by_name(methods, contrib)
"""Every method by the name that users type."""


def create_averager(
    name: str,
    model: nn.Module,
    optimizer: Optimizers = None,
    **options: "Unpack[MethodOptions]",
) -> Averager:
    """Create an averager by name.

    Args:
        name: a name in ``METHODS``.
        model: see :class:`Averager`.
        optimizer: see :class:`Averager`.
        options: the options of the method, such as ``decay`` or ``switch_every``.

    >>> create_averager("ema", nn.Linear(1, 1), decay=0.99).name
    'ema'
    """
    if name not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {name!r}.")
    method: Callable[..., Averager] = METHODS[name]
    return method(model, optimizer, **options)
