"""Several windows watched in one run, and a paired choice among them."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Union

import torch
from torch import Tensor, nn

from switch_ema.averaging._signals import Uninterrupted
from switch_ema.averaging.methods.ema import EMA
from switch_ema.averaging.registry import MethodOptions
from switch_ema.averaging.shadow.state import StateMismatch, snapshot
from switch_ema.averaging.step.hooks import Optimizers
from switch_ema.averaging.view.stage import Block

if TYPE_CHECKING:
    from typing_extensions import Unpack

LIVE = "live"
"""The name of the live weights among the candidates."""

Measure = Callable[[nn.Module], Union[Tensor, Sequence[float]]]
"""Returns one score per held-out example, always in the same order."""


@dataclass(frozen=True)
class WindowChoice:
    """A paired choice among windows, made by :meth:`Windows.choose`."""

    name: str
    """The chosen window, or "live"."""
    scores: Mapping[str, float]
    """Mean score by window."""
    gains: Mapping[str, float]
    """Mean gain over the default by window; positive is better."""
    errors: Mapping[str, float]
    """Standard error of each gain, paired by example."""
    n: int
    """Number of examples."""

    @classmethod
    def between(
        cls, scores: Mapping[str, Tensor], *, higher_is_better: bool
    ) -> "WindowChoice":
        """Choose by scores of the same examples; the first name is the default.

        Another one is chosen if its mean is the best and its gain over the default
        exceeds one standard error, or if the default's scores are not finite.

        >>> right = {"long": torch.tensor([1.0, 0, 0]), "short": torch.ones(3)}
        >>> WindowChoice.between(right, higher_is_better=True).name
        'short'
        """
        sign = 1 if higher_is_better else -1
        names, default = [*scores], next(iter(scores.values()))
        differences = {name: sign * (one - default) for name, one in scores.items()}
        means = {name: one.mean().item() for name, one in scores.items()}
        gains = {name: one.mean().item() for name, one in differences.items()}
        errors = {
            name: one.std().item() / math.sqrt(len(one))
            for name, one in differences.items()
        }
        finite = [name for name in names if math.isfinite(means[name])]
        best = max(finite, key=lambda name: sign * means[name], default=names[0])
        if names[0] in finite and not gains[best] > errors[best]:
            best = names[0]
        return cls(best, means, gains, errors, len(default))

    def __str__(self) -> str:
        """List all windows, the chosen one marked."""
        return "\n".join(
            f"{'->' if name == self.name else '  '} {name}: {score:.6g}, gain "
            f"{self.gains[name]:+.3g} ± {self.errors[name]:.2g} (n = {self.n})"
            for name, score in self.scores.items()
        )


class Windows:
    """Average one run over several windows, and choose among them on held-out data.

    All windows follow the same trajectory, so their scores are paired by example, and
    a few hundred examples tell apart windows that two trainings could not. The first
    window is the default: another one, or the live weights, is chosen only if its gain
    exceeds one standard error.

    Args:
        model: see :class:`Averager`.
        optimizer: see :class:`Averager`.
        decays: the windows, at least one, as for ``EMA``: numbers or strings.
        options: other options of :class:`EMA`, for all windows.

    >>> model = nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> windows = Windows(model, optimizer, decays=["auto", "fraction(0.02)"])
    >>> x, y = torch.ones(8, 2), torch.zeros(8, 1)
    >>> for _ in range(3):
    ...     optimizer.zero_grad()
    ...     (model(x) - y).square().mean().backward()
    ...     optimizer.step()
    >>> with torch.no_grad():
    ...     choice = windows.choose(
    ...         lambda model: (model(x) - y).square().flatten(), higher_is_better=False
    ...     )
    >>> choice.n, sorted(choice.scores)
    (8, ['auto', 'fraction(0.02)', 'live'])
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizers = None,
        *,
        decays: Sequence[float | str] = ("auto", "fraction(0.02)"),
        **options: "Unpack[MethodOptions]",
    ) -> None:
        names = _names(decays)
        if "decay" in options:
            raise ValueError("Windows takes decays=[...], not decay.")
        own: dict[str, Any] = dict(options)
        self._windows = {
            name: EMA(model, optimizer, **(own | {"decay": decay}))
            for name, decay in zip(names, decays, strict=True)
        }
        self._first = self._windows[names[0]]
        self._chosen = names[0]

    def __repr__(self) -> str:
        """Return the windows and the chosen one."""
        return f"Windows({', '.join(self._windows)}; chosen: {self._chosen})"

    def __getitem__(self, name: str) -> EMA:
        """Return the average over one window, by its decay as given."""
        return self._windows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._windows)

    def __len__(self) -> int:
        return len(self._windows)

    @property
    def chosen(self) -> str:
        """What :meth:`averaged` shows: a window or "live"; at first the default."""
        return self._chosen

    # Following the run.

    def update(self) -> None:
        """Count one optimizer step; not needed if an optimizer was given."""
        with Uninterrupted():  # a Ctrl-C must not separate the windows
            for window in self._windows.values():
                window.update()

    def end_epoch(self) -> None:
        """Count one epoch."""
        with Uninterrupted():
            for window in self._windows.values():
                window.end_epoch()

    def restart(self) -> None:
        """Begin all averages again from the live weights, for a new phase."""
        with Uninterrupted():
            for window in self._windows.values():
                window.restart()

    def detach(self) -> None:
        """Remove the hooks from the optimizer; the averages stay as they are."""
        for window in self._windows.values():
            window.detach()

    # Choosing.

    def choose(self, measure: Measure, *, higher_is_better: bool) -> WindowChoice:
        """Choose a window on held-out data, which :meth:`averaged` then shows.

        Use data that is neither trained on nor reported. With several processes, all
        must call, and rank 0's scores count.

        Args:
            measure: returns one score per example for the weights in the model, such
                as a loss, or 1 for a correct answer and 0 for a wrong one.
            higher_is_better: the direction of the scores.
        """
        scores: dict[str, Tensor] = {}
        for name in (*self._windows, LIVE):
            with self._block(name) as model:
                scores[name] = _checked(measure(model), scores)
        choice = WindowChoice.between(scores, higher_is_better=higher_is_better)
        # Ranks that differ would return different weights.
        names = [*scores]
        number = self._first._agreed(float(names.index(choice.name)))
        self._chosen = names[int(number)]
        return replace(choice, name=self._chosen)

    def averaged(self) -> Block[nn.Module]:
        """Hold the chosen weights in the model for the length of a ``with`` block."""
        return self._block(self._chosen)

    def averaged_state_dict(self, *, full: bool = False) -> dict[str, Any]:
        """Return the chosen weights, as :meth:`Averager.averaged_state_dict` does.

        Args:
            full: gather whole tensors on the CPU, for models sharded by FSDP2.
        """
        with self.averaged() as model:
            return snapshot(model, full)

    def _block(self, name: str) -> Block[nn.Module]:
        if name == LIVE:
            return Block(self._first._stage, lambda: None, self._first._wrapped)
        return self._windows[name].averaged()

    # Saving and resuming.

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all windows and the choice."""
        windows = {name: one.state_dict() for name, one in self._windows.items()}
        return {"windows": windows, "chosen": self._chosen}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned.

        Raises:
            StateMismatch: the state has other windows or belongs to another model;
                nothing has changed.
        """
        if not isinstance(state, Mapping) or state.keys() != {"windows", "chosen"}:
            raise StateMismatch("This is not the state_dict() of Windows.")
        windows, chosen = state["windows"], state["chosen"]
        if not isinstance(windows, Mapping) or windows.keys() != self._windows.keys():
            found = ", ".join(map(str, windows)) if isinstance(windows, Mapping) else ""
            raise StateMismatch(
                f"The state has the windows {found or 'none'}, expected "
                f"{', '.join(self._windows)}; nothing was loaded."
            )
        if chosen not in (*self._windows, LIVE):
            raise StateMismatch(f"The state's chosen window is {chosen!r}.")
        for name, window in self._windows.items():
            window._check_before_loading(windows[name])
        with Uninterrupted():
            for name, window in self._windows.items():
                window._load_checked(windows[name])
            self._chosen = chosen


def _names(decays: Any) -> list[str]:
    if isinstance(decays, (str, Mapping)) or not isinstance(decays, Sequence):
        raise ValueError(
            f"decays must be a list such as ['auto', 'fraction(0.02)'], got {decays!r}."
        )
    for decay in decays:
        if isinstance(decay, bool) or not isinstance(decay, (int, float, str)):
            raise ValueError(f"decays must be numbers or strings, got {decay!r}.")
    names = [str(decay) for decay in decays]
    if not names or len(set(names)) < len(names):
        raise ValueError(
            f"decays must be one or more that differ from each other, got {decays!r}."
        )
    return names


def _checked(values: Any, others: Mapping[str, Tensor]) -> Tensor:
    """Return scores as a tensor; raise if they cannot be paired."""
    scores = torch.as_tensor(values).detach().double().cpu()
    expected = next((one.shape for one in others.values()), scores.shape)
    if scores.dim() != 1 or len(scores) < 2 or scores.shape != expected:
        raise ValueError(
            "measure must return one score per example, two or more and as many for "
            f"all windows, got the shape {list(scores.shape)}."
        )
    return scores
