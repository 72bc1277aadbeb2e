"""Weight averaging; it needs torch and the standard library alone.

Each line may import from the lines below it, and not the other way round:

    attach, best, suggest  around a method: the loop as it is, the best epoch, a start
    windows                several averages of one run, and a choice among them
    registry               all methods by name
    contrib                experimental methods, one file each
    methods                the stable methods, one file each
    averager               the base class: counts, averages, shows, saves, resumes
    shadow, offline        where the average lives; averages of files
    view, step             the average in the model; hooks on ``optimizer.step``
    model                  which tensors of a model are averaged
    distributed            DDP and FSDP2
    kernels, schedules     the arithmetic; decays, intervals and counters
    _torch, _signals       what torch does not promise; what Ctrl-C must not cut in two

One step of training takes this way: ``optimizer.step`` calls :mod:`.step.hooks`, which
calls the averager, whose method asks its schedule for the decay and the shadow to
average; the shadow hands its groups of tensors to a kernel.
"""

from typing import TYPE_CHECKING, Any

from switch_ema._deprecation import warn_deprecated
from switch_ema.averaging import contrib, methods
from switch_ema.averaging.attach import Attached, attach
from switch_ema.averaging.averager import Averager
from switch_ema.averaging.best import Best
from switch_ema.averaging.methods import *
from switch_ema.averaging.methods.swa import ConstantAfter, swa_budget
from switch_ema.averaging.model.names import load_weights, unwrap
from switch_ema.averaging.offline.export import save_averaged
from switch_ema.averaging.offline.merge import Merged, merge_checkpoints
from switch_ema.averaging.offline.profiles import (
    decay_profile,
    decay_weights,
    exponential_profile,
    power_profile,
    uniform_profile,
)
from switch_ema.averaging.offline.soup import Soup, greedy_soup, uniform_soup
from switch_ema.averaging.offline.synthesis import fit_profile, synthesize
from switch_ema.averaging.registry import METHODS, create_averager
from switch_ema.averaging.schedules.auto import surviving_share
from switch_ema.averaging.schedules.decay import (
    DecaySchedule,
    constant,
    constant_warmup,
    cosine,
    count_warmup,
    exponential_warmup,
    linear_warmup,
    power_warmup,
)
from switch_ema.averaging.schedules.intervals import Epochs, Steps
from switch_ema.averaging.schedules.windows import fraction, half_life, power
from switch_ema.averaging.shadow.state import StateMismatch
from switch_ema.averaging.step.fused import FusedAdam, FusedAdamW, FusedSGD
from switch_ema.averaging.suggest import Suggestion, suggest
from switch_ema.averaging.view.teacher import Teacher
from switch_ema.averaging.windows import WindowChoice, Windows

__all__ = [
    # Methods
    *methods.__all__,
    "Averager",
    "METHODS",
    "create_averager",
    "attach",
    "Attached",
    "Best",
    "Windows",
    "WindowChoice",
    # Optimizers that average in their step
    "FusedAdam",
    "FusedAdamW",
    "FusedSGD",
    # After training: merges, soups and synthesised profiles
    "merge_checkpoints",
    "Merged",
    "Soup",
    "greedy_soup",
    "uniform_soup",
    "synthesize",
    "fit_profile",
    "power_profile",
    "exponential_profile",
    "uniform_profile",
    "decay_profile",
    "decay_weights",
    # Decay
    "DecaySchedule",
    "constant",
    "constant_warmup",
    "cosine",
    "count_warmup",
    "exponential_warmup",
    "fraction",
    "half_life",
    "linear_warmup",
    "power",
    "power_warmup",
    "surviving_share",
    # When
    "Epochs",
    "Steps",
    # Tools for the methods
    "ConstantAfter",
    "StateMismatch",
    "Suggestion",
    "Teacher",
    "load_weights",
    "save_averaged",
    "suggest",
    "swa_budget",
    "unwrap",
]

if not TYPE_CHECKING:  # a checker would take any name as known

    def __getattr__(name: str) -> Any:
        if name not in contrib.__all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        old, new = f"{__name__}.{name}", f"switch_ema.contrib.{name}"
        warn_deprecated(old, new, removed_in="0.4")
        return getattr(contrib, name)
