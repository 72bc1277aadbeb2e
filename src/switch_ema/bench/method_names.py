"""The methods that a comparison can name; a list of them needs no torch."""

from collections.abc import Mapping
from typing import Any

from switch_ema._methods import method_facts

PLAIN = "plain"
CONTROL = "plain-again"
"""Plain training with another data order: it shows what chance alone does."""

BEST = "+best"
"""The end of a method's name that returns its best average, by held-out values."""

ADAPTIVE = "adaptive"
"""The ``switch_every`` of a Switch EMA that held-out values tell when to switch."""


def base_name(name: str) -> str:
    """Return the name of the method itself.

    >>> base_name("ema+best"), base_name("ema")
    ('ema', 'ema')
    """
    return name.removesuffix(BEST)


def is_adaptive(options: Mapping[str, Any]) -> bool:
    """Whether a method's options ask for switches that held-out values decide."""
    return options.get("switch_every") == ADAPTIVE


def uses_held_out(name: str, options: Mapping[str, Any]) -> bool:
    """Whether a method looks at held-out data while it trains.

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
"""What each method does, in one sentence."""
