"""Names and descriptions of the methods; listing them needs no torch."""

from collections.abc import Mapping
from typing import Any

from switch_ema._methods import method_facts

PLAIN = "plain"
CONTROL = "plain-again"
"""Plain training with another data order: shows the effect of chance alone."""

BEST = "+best"
"""Name suffix: return the best average by held-out values."""

ADAPTIVE = "adaptive"
"""Value of ``switch_every``: held-out values decide when to switch."""


def base_name(name: str) -> str:
    """Strip the suffix from a method's name.

    >>> base_name("ema+best"), base_name("ema")
    ('ema', 'ema')
    """
    return name.removesuffix(BEST)


def is_adaptive(options: Mapping[str, Any]) -> bool:
    """Whether a method's options let held-out values decide when to switch."""
    return options.get("switch_every") == ADAPTIVE


def uses_held_out(name: str, options: Mapping[str, Any]) -> bool:
    """Whether a method uses held-out data during training.

    >>> uses_held_out("ema+best", {}), uses_held_out("ema", {})
    (True, False)
    """
    return name.endswith(BEST) or is_adaptive(options)


DESCRIPTIONS = {
    PLAIN: "No averaging: the live weights.",
    CONTROL: "Plain with another data order: a check of the statistics (A/A).",
    **{name: facts.description for name, facts in method_facts().items()},
    f"{PLAIN}{BEST}": (
        "The live weights of the best epoch, if the last is worse on held-out data."
    ),
    f"ema{BEST}": ("The EMA of the best epoch, if the last is worse on held-out data."),
    f"switch-ema{BEST}": (
        "Switch EMA's average of the best epoch, if the last is worse on held-out data."
    ),
}
"""Descriptions by name, one sentence each."""
