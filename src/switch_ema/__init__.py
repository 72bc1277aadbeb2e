"""switch-ema: weight averaging for PyTorch as a plug-in of three lines.

The first use of a name imports :mod:`switch_ema.averaging`, so the command line prints
its help without importing torch. Names in ``_ELSEWHERE`` are imported one by one.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from switch_ema._deprecation import warn_deprecated
from switch_ema._lazy import exported_names

if TYPE_CHECKING:
    from switch_ema.averaging import *
    from switch_ema.averaging.methods import *  # mypy reads no starred ``__all__``
    from switch_ema.bench.judge import judge
    from switch_ema.bench.train.trial import trial
    from switch_ema.contrib import *  # the old names, which 0.4 removes
    from switch_ema.doctor.audit import audit

__version__ = "0.2.0"

__all__ = [
    # Methods
    *exported_names("switch_ema.averaging.methods"),
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
    # On your own runs
    "audit",
    "judge",
    "trial",
]

_ELSEWHERE = {
    "audit": "switch_ema.doctor.audit",
    "judge": "switch_ema.bench.judge",
    "trial": "switch_ema.bench.train.trial",
}
_PACKAGES = ("averaging", "contrib")


if not TYPE_CHECKING:  # a checker would take any name as known

    def __getattr__(name: str) -> Any:
        if name in _ELSEWHERE:
            from switch_ema._extras import needed

            with needed(None, extra="cli", user=f"switch_ema.{name}"):
                globals()[name] = getattr(import_module(_ELSEWHERE[name]), name)
            return globals()[name]
        if name in _PACKAGES:
            return import_module(f"switch_ema.{name}")
        if name in exported_names("switch_ema.averaging.contrib"):
            old, new = f"switch_ema.{name}", f"switch_ema.contrib.{name}"
            warn_deprecated(old, new, removed_in="0.4")
            return getattr(import_module("switch_ema.contrib"), name)
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        averaging = import_module("switch_ema.averaging")
        ours = [public for public in __all__ if public not in _ELSEWHERE]
        globals().update({public: getattr(averaging, public) for public in ours})
        return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PACKAGES})
