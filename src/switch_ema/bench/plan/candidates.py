"""The values that tuning tries for each method."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from switch_ema.bench.errors import UsageError
from switch_ema.bench.plan.config import LEARNING_RATE, CompareConfig
from switch_ema.bench.plan.sweep_points import with_factor, with_value
from switch_ema.bench.spec import parse_method_spec, parse_variation

_KNOBS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "ema": ("decay", (0.99, 0.999, 0.9, 0.9999)),
    "switch-ema": ("decay", (0.99, 0.999, 0.9, 0.9999)),
    "swa": ("start", (0.75, 0.5, 0.875, 0.25)),
    "lawa": ("k", (5, 3, 10, 20)),
    "lookahead": ("k", (100, 5, 20, 500)),
    "pswa": ("period", (5, 2, 10, 20)),
}
"""The main option of each method, with the most promising values first.

SWA's values are shares of the training, converted to epochs.
"""

FACTORS = (1, 0.5, 2, 0.25, 4)
"""Learning rate factors to try if no rates are given."""


def candidates_of(config: CompareConfig, epochs: int) -> list[dict[str, Any]]:
    """Return each method's candidates, with the values that they stand for.

    Args:
        config: the comparison.
        epochs: length of a training.
    """
    methods, tuned = config.methods, config.tune
    if isinstance(tuned, int):
        return [_main_candidates(text, tuned, epochs) for text in methods]
    if tuned == LEARNING_RATE:
        rows = {f: [with_factor(text, f) for text in methods] for f in FACTORS}
    else:
        option, values = parse_variation(tuned)
        rows = {value: [*with_value(methods, option, value)] for value in values}
    return [
        {row[index]: value for value, row in rows.items()}
        for index in range(len(methods))
    ]


def tuned_option(config: CompareConfig) -> str:
    """Name the option that a comparison tunes."""
    if isinstance(config.tune, int):
        return "value of its main option"
    option = config.tune.partition("=")[0]
    return "learning rate" if option == LEARNING_RATE else option


def places_of(
    config: CompareConfig, epochs: int, chosen: Sequence[str]
) -> dict[str, str]:
    """Say where each method's chosen value lies among its candidates.

    Args:
        config: the comparison, with its methods as typed.
        epochs: length of a training.
        chosen: the chosen methods, in the order of the typed ones.

    Returns:
        By typed method: "as given" for an unchanged learning rate, "smallest" or
        "largest" for an end of the candidates; others are left out.
    """
    places = {}
    for method, found, choice in zip(
        config.methods, candidates_of(config, epochs), chosen, strict=False
    ):
        values = [value for value in found.values() if type(value) in (int, float)]
        own = found.get(choice)
        if own is None or len(values) < max(2, len(found)):
            continue  # set by the user, or not a number
        if own in (min(values), max(values)):
            places[method] = "smallest" if own == min(values) else "largest"
        elif choice == method:
            places[method] = "as given"
    return places


def _main_candidates(text: str, budget: int, epochs: int) -> dict[str, Any]:
    """List candidates for a method's main option."""
    spec = parse_method_spec(text)
    option, values = _KNOBS.get(spec.name, ("", ()))
    if not values or option in spec.options:
        return {text: None}
    if budget > len(values):
        raise UsageError(f"tune must be at most {len(values)}, got {budget}.")
    if spec.name == "swa":
        values = tuple(int(share * epochs) for share in values)
    return {
        str(replace(spec, options={**spec.options, option: v})): v
        for v in values[:budget]
    }
