"""The values that tuning tries for each method."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from switch_ema.bench.errors import UsageError
from switch_ema.bench.plan.config import LEARNING_RATE, CompareConfig
from switch_ema.bench.plan.sweep_points import with_factor, with_value
from switch_ema.bench.spec import EPOCHS, parse_method_spec, parse_variations

Values = dict[str, Any]
"""Values of the options that are tuned."""

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

FACTORS = {LEARNING_RATE: (1, 0.5, 2, 0.25, 4), EPOCHS: (1, 0.5, 0.25)}
"""Factors to try for settings without given values; no training is lengthened."""

_NAMES = {LEARNING_RATE: "learning rate", EPOCHS: "number of epochs"}
_MAIN = "value of its main option"


def candidates_of(config: CompareConfig, epochs: int) -> list[dict[str, Values]]:
    """Return each method's candidates, with the values that they stand for.

    Args:
        config: the comparison.
        epochs: length of a training.
    """
    if isinstance(config.tune, int):
        return [_main_candidates(m, config.tune, epochs) for m in config.methods]
    varied = parse_variations(config.tune)
    found: list[dict[str, Values]] = [{} for _ in config.methods]
    for values in product(*(given or FACTORS[o] for o, given in varied.items())):
        methods = config.methods
        for option, value in zip(varied, values, strict=True):
            if varied[option]:
                methods = with_value(methods, option, value)
            else:
                methods = tuple(with_factor(m, option, value) for m in methods)
        for own, method in zip(found, methods, strict=True):
            own.setdefault(method, dict(zip(varied, values, strict=True)))
    return found


def places_of(
    config: CompareConfig, epochs: int, chosen: Sequence[str]
) -> dict[str, dict[str, str]]:
    """Say where each method's chosen values lie among its candidates.

    Args:
        config: the comparison, with its methods as typed.
        epochs: length of a training.
        chosen: the chosen methods, in the order of the typed ones.

    Returns:
        By option, such as "learning rate", and typed method: "as given" for an
        unchanged value, "smallest" or "largest" for an end of the candidates; others
        are left out.
    """
    places: dict[str, dict[str, str]] = {}
    for method, found, choice in zip(
        config.methods, candidates_of(config, epochs), chosen, strict=False
    ):
        for option, own in found.get(choice, {}).items():
            values = {values[option] for values in found.values()}
            if len(values) < 2 or not all(type(v) in (int, float) for v in values):
                continue  # set by the user, or not numbers
            if own in (min(values), max(values)):
                place = "smallest" if own == min(values) else "largest"
            elif own == 1 and values == {*FACTORS.get(option, ())}:
                place = "as given"
            else:
                continue
            places.setdefault(_NAMES.get(option, option), {})[method] = place
    return places


def _main_candidates(text: str, budget: int, epochs: int) -> dict[str, Values]:
    """List candidates for a method's main option."""
    spec = parse_method_spec(text)
    option, values = _KNOBS.get(spec.name, ("", ()))
    if not values or option in spec.options:
        return {text: {}}
    if budget > len(values):
        raise UsageError(f"tune must be at most {len(values)}, got {budget}.")
    if spec.name == "swa":
        values = tuple(int(share * epochs) for share in values)
    return {
        str(replace(spec, options={**spec.options, option: v})): {_MAIN: v}
        for v in values[:budget]
    }
