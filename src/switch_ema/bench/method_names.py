"""The methods that a comparison can name; a list of them needs no torch."""

from collections.abc import Mapping
from typing import Any

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
    # The first lines of the docstrings of ``switch_ema.averaging.registry.METHODS``.
    "ema": (
        "Average exponentially: ``shadow = d * shadow + (1 - d) * live`` at every step."
    ),
    "switch-ema": (
        "Average exponentially; at the end of every T epochs continue from the average."
    ),
    "swa": (
        "Average equally: the mean of the live weights at the due points after a start."
    ),
    "lookahead": (
        "Every k steps move the slow weights towards the fast ones and restart there."
    ),
    "lawa": (
        "Average the last k snapshots equally; until the first, show the live model."
    ),
    "pswa": (
        "Average equally within a period; continue training from the mean at its end."
    ),
    "posthoc-ema": (
        "Keep power-function averages, and snapshots of them to choose from later."
    ),
    "literal-eq3": (
        "Average at every step into the live weights, except at every T-th step."
    ),
    "snoo": (
        "Every k steps take a Nesterov step towards the fast weights and restart there."
    ),
    "pace": "Pull every live weight a little towards its average, at every step.",
    "elastic-reset": (
        "Switch as Switch EMA does; then the shadow goes back to the initial weights."
    ),
    "bema": (
        "Average exponentially, and add a share of the way from the initial weights."
    ),
    "tail-ema": (
        "Average exponentially, and show a mixture of the live weights and the average."
    ),
    "swag": (
        "Average equally as SWA does, with a Gaussian around the mean to sample from."
    ),
    f"{PLAIN}{BEST}": (
        "The live weights of the best epoch, if the last is worse on held-out data."
    ),
    f"ema{BEST}": ("The EMA of the best epoch, if the last is worse on held-out data."),
    f"switch-ema{BEST}": (
        "Switch EMA's average of the best epoch, if the last is worse on held-out data."
    ),
}
"""Name and what it does, in one sentence."""
