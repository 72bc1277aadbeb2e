"""Model soups: averages of several trained models (Wortsman et al., 2022).

An ingredient is a state dict or the path of a safetensors file. Ingredients are loaded
one at a time, so memory does not grow with their number. Values other than
floating-point or complex tensors, such as counters, come from the first ingredient, and
so do dtypes and devices.

The paper: https://arxiv.org/abs/2203.05482.
"""

import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union

import torch
from torch import Tensor

from switch_ema._checks import listed
from switch_ema.averaging.offline.confined import require_regular
from switch_ema.averaging.offline.streams import require_safetensors, round_once

Ingredient = Union[Mapping[str, Tensor], str, os.PathLike[str]]


@dataclass(frozen=True)
class Soup:
    """The result of :func:`greedy_soup`."""

    weights: dict[str, Tensor]
    """The average of the chosen ingredients, for ``model.load_state_dict``."""
    score: float
    """The score of the soup."""
    chosen: tuple[int, ...]
    """Indices of the chosen ingredients, in the order in which they were added."""
    scores: tuple[float, ...]
    """The score of each ingredient alone, in the order given."""


def uniform_soup(ingredients: Sequence[Ingredient]) -> dict[str, Tensor]:
    """Average all ingredients: ``soup = sum(ingredients) / n``.

    Args:
        ingredients: state dicts or paths of safetensors files, of one architecture.

    Returns:
        A state dict for ``model.load_state_dict``, in memory of its own.

    Raises:
        ValueError: there is no ingredient, or names or shapes differ between them.

    >>> uniform_soup([{"w": torch.tensor([1.0])}, {"w": torch.tensor([3.0])}])
    {'w': tensor([2.])}
    """
    ingredients = _listed(ingredients)
    return combine(ingredients, [1 / len(ingredients)] * len(ingredients))


def greedy_soup(
    ingredients: Sequence[Ingredient],
    evaluate: Callable[[dict[str, Tensor]], float],
    *,
    higher_is_better: bool = True,
) -> Soup:
    """Average the ingredients that help, best first.

    Each ingredient is scored alone. Then, from best to worst, an ingredient is added if
    the soup with it scores no worse than without it, so the result is no worse than the
    best ingredient. Score on held-out data that is used for nothing else.

    Args:
        ingredients: state dicts or paths of safetensors files, of one architecture.
            For dtypes and whatever is not averaged, the best one counts as the first.
        evaluate: scores a state dict; NaN is worse than anything.
        higher_is_better: False for losses and errors.

    Raises:
        ValueError: there is no ingredient, names or shapes differ, or all are NaN.

    >>> found = greedy_soup(
    ...     [{"w": torch.tensor(w)} for w in (3.0, 0.5, -1.0)],
    ...     evaluate=lambda state: abs(state["w"].item()),
    ...     higher_is_better=False,
    ... )
    >>> found.chosen, found.score
    ((1, 2), 0.25)
    """
    ingredients = _listed(ingredients)
    sign = 1 if higher_is_better else -1
    scores = [float(evaluate(_load(ingredient))) for ingredient in ingredients]
    best, *others = _best_first(scores, sign)
    total = _WeightedSum(_load(ingredients[best]), _label(ingredients, best))
    chosen, score = [best], scores[best]
    for i in others:
        state = _load(ingredients[i])
        total.check(state, _label(ingredients, i))
        trial = float(evaluate(total.value(plus=state, over=len(chosen) + 1)))
        if sign * trial >= sign * score:
            total.add(state)
            chosen.append(i)
            score = trial
    weights = total.value(over=len(chosen))
    return Soup(weights, score, tuple(chosen), tuple(scores))


def _best_first(scores: Sequence[float], sign: int) -> list[int]:
    valid = [i for i, score in enumerate(scores) if not math.isnan(score)]
    if not valid:
        raise ValueError(f"evaluate returned NaN for all {len(scores)} ingredients.")
    return sorted(valid, key=lambda i: -sign * scores[i])


def combine(
    ingredients: Sequence[Ingredient],
    coefficients: Sequence[float],
    copied: Collection[str] = (),
) -> dict[str, Tensor]:
    """Return ``sum(c * ingredient)``, where ``copied`` names are those of the first."""
    total: _WeightedSum | None = None
    for i, coefficient in enumerate(coefficients):
        state = _load(ingredients[i])
        if total is None:
            total = _WeightedSum(state, _label(ingredients, i), coefficient, copied)
        else:
            total.check(state, _label(ingredients, i))
            total.add(state, coefficient)
    assert total is not None
    return total.value()


class _WeightedSum:
    """A sum of state dicts in float64 on the CPU, which not every device has."""

    def __init__(
        self,
        first: Mapping[str, Any],
        label: str,
        coefficient: float = 1.0,
        copied: Collection[str] = (),
    ) -> None:
        self._label = label
        self._totals: dict[str, Tensor] = {}
        # A tensor on "meta" has a shape and a dtype and takes no memory.
        self._like: dict[str, Any] = {}
        self._devices: dict[str, torch.device] = {}
        for name, value in first.items():
            if name in copied or not _is_averaged(value):
                own = value.detach().clone() if isinstance(value, Tensor) else value
                self._like[name] = own
            else:
                self._like[name] = torch.empty_like(value, device="meta")
                self._devices[name] = value.device
                self._totals[name] = scaled(value, coefficient)

    def add(self, state: Mapping[str, Any], coefficient: float = 1.0) -> None:
        """Add ``coefficient * state``, which must have passed :meth:`check`."""
        for name, total in self._totals.items():
            total.add_(scaled(state[name], coefficient))

    def value(
        self, *, plus: Mapping[str, Any] | None = None, over: int = 1
    ) -> dict[str, Any]:
        """Return ``(sum + plus) / over`` with the dtypes and devices of the first."""
        result = dict(self._like)
        for name, total in self._totals.items():
            value = total if plus is None else total + scaled(plus[name], 1.0)
            dtype = self._like[name].dtype
            mean = round_once(value / over, out=torch.empty(value.shape, dtype=dtype))
            result[name] = mean.to(self._devices[name])
        return result

    def check(self, state: Mapping[str, Any], label: str) -> None:
        """Raise ValueError unless the state has the names and shapes of the first."""
        found = differences(_shapes(self._like), _shapes(state), "shape")
        if found:
            raise ValueError(
                f"{label} belongs to another model than {self._label}; {found}."
            )


def differences(
    expected: Mapping[str, Any], found: Mapping[str, Any], kind: str
) -> str:
    """Describe missing, unexpected and different entries; empty if all are alike."""
    problems = {
        "missing": [name for name in expected if name not in found],
        "unexpected": [name for name in found if name not in expected],
        f"of another {kind}": [
            f"{name} is {found[name]}, expected {value}"
            for name, value in expected.items()
            if name in found and found[name] != value
        ],
    }
    return ". ".join(f"{p}: {listed(n, '; ')}" for p, n in problems.items() if n)


def _is_averaged(value: Any) -> bool:
    return isinstance(value, Tensor) and is_averaged(value.dtype)


def is_averaged(dtype: torch.dtype) -> bool:
    """Whether tensors of this dtype are averaged; others are copied."""
    return dtype.is_floating_point or dtype.is_complex


def scaled(value: Tensor, coefficient: float, out: Tensor | None = None) -> Tensor:
    """Return ``coefficient * value`` in double precision, in memory of its own.

    Sums of these are bitwise independent of the division into blocks; a fused
    multiply-add would round differently at the edges of blocks.

    Args:
        value: any tensor.
        coefficient: its factor; with 0, infinities and NaN do not count either.
        out: memory for the result, as :func:`exact_like` makes it.
    """
    out = exact_like(value) if out is None else out
    if coefficient == 0:
        return out.zero_()
    return out.copy_(value.detach().cpu()).mul_(coefficient)


def exact_like(value: Tensor) -> Tensor:
    """Return memory of a tensor's shape in double precision, which MPS cannot hold."""
    wide = torch.complex128 if value.is_complex() else torch.float64
    return torch.empty(value.shape, dtype=wide)


def _shapes(state: Mapping[str, Any]) -> dict[str, list[int] | None]:
    """Return the shape of each tensor, and None for values of other kinds."""
    return {
        name: list(value.shape) if isinstance(value, Tensor) else None
        for name, value in state.items()
    }


def _listed(ingredients: Sequence[Ingredient]) -> list[Ingredient]:
    if isinstance(ingredients, (str, os.PathLike, Mapping)):
        raise TypeError(
            "ingredients must be a list of state dicts or paths, got a single "
            f"{type(ingredients).__name__}."
        )
    listed = list(ingredients)
    if not listed:
        raise ValueError(
            "ingredients must have at least one state dict or path, got none."
        )
    return listed


def _label(ingredients: Sequence[Ingredient], i: int) -> str:
    ingredient = ingredients[i]
    return f"ingredient {i}" if isinstance(ingredient, Mapping) else str(ingredient)


def _load(ingredient: Ingredient) -> dict[str, Any]:
    if isinstance(ingredient, Mapping):
        return dict(ingredient)
    files = require_safetensors("A soup of files")
    require_regular(Path(ingredient))
    try:
        tensors: dict[str, Any] = files.load_file(ingredient)
    except OSError:
        raise
    except Exception as error:  # SafetensorError derives from Exception alone
        raise ValueError(f"{ingredient} is not a safetensors file: {error}.") from error
    return tensors
