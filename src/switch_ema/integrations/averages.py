"""All averages that a trainer's callback keeps in one training run."""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, Union

from torch import nn

from switch_ema._checks import check_choice
from switch_ema._random import random_numbers_kept
from switch_ema.averaging.averager import Averager
from switch_ema.averaging.best import Best
from switch_ema.averaging.methods.late_start import LateStart
from switch_ema.averaging.model.names import unwrap
from switch_ema.averaging.registry import MethodOptions, create_averager
from switch_ema.averaging.schedules.spelling import as_schedule
from switch_ema.averaging.schedules.start import as_start, in_run
from switch_ema.averaging.schedules.windows import fraction
from switch_ema.averaging.step.hooks import Optimizers
from switch_ema.averaging.step.rounds import as_counting
from switch_ema.averaging.view.stage import stage_of
from switch_ema.integrations.best import BestBy
from switch_ema.integrations.measures import describe_average, distance
from switch_ema.integrations.options import check_method, spelled_out
from switch_ema.integrations.wrapping import warn_without_state

F = TypeVar("F", bound=Callable[..., Any])

Evaluate = Literal["averaged", "live", "both"]
"""Weights that evaluations during training measure."""

Decays = Sequence[Union[float, str]]
"""Decays of further averages: numbers or strings, since they become metric names."""

AVERAGER_FILE = "switch_ema.pt"
"""File in a Transformers checkpoint with the averager and the live weights."""

LIVE = "_live"
"""Suffix of the metrics of the live weights."""

_EVALUATIONS = 2
"""Evaluations in a row in which the live weights must be better, for a warning."""

_BEST, _FURTHER = "best", "further"
_OWN = ("best", "evaluate", "decays", "log_averaging")
_SHARED = (
    "buffers",
    "dtype",
    "device",
    "include",
    "exclude",
    "steps_per_epoch",
    "count",
)


_LATE = ("ema", "tail-ema")
"""Methods whose ``start`` may be text, and a share of the run."""


class CallbackOptions(MethodOptions, total=False):
    """Options of a method, plus those shared by the callbacks of all trainers."""

    best: BestBy | None
    evaluate: Evaluate
    decays: Decays | None
    log_averaging: bool


def takes_callback_options(function: F) -> F:
    """Put all callback options into the signature; see :func:`spelled_out`."""
    return spelled_out(function, CallbackOptions)


@dataclass(frozen=True, kw_only=True)
class AveragingSettings:
    """Settings of a callback, validated on construction."""

    method: str
    options: MethodOptions
    best: BestBy | None = None
    evaluate: Evaluate = "averaged"
    decays: Decays | None = None
    log_averaging: bool = False

    @classmethod
    def of(cls, method: str, options: Mapping[str, Any]) -> "AveragingSettings":
        """Separate the method's options from the callback's.

        ``best`` may be a mapping, as in config files.
        """
        own = {name: options[name] for name in _OWN if name in options}
        if isinstance(own.get("best"), Mapping):
            own["best"] = BestBy(**own["best"])
        rest: Any = {n: value for n, value in options.items() if n not in own}
        return cls(method=method, options=rest, **own)

    def __post_init__(self) -> None:
        check_method(self.method, self.options)
        if isinstance(count := self.options.get("count"), str):
            as_counting(count, ())  # integers can be checked only once optimizers exist
        if self.method in _LATE:
            as_start(in_run(self.options.get("start", 0), "1ep"))
        check_choice("evaluate", self.evaluate, ("averaged", "live", "both"))
        if self.evaluate == "live" and self.best is not None:
            raise ValueError(
                "best ranks averages by their own scores, so evaluate must be "
                "'averaged' or 'both', got 'live'."
            )
        _check_decays(self.decays)


class Averages:
    """The main average of a training run, those at further decays, and the best one.

    Args:
        settings: the user's settings.
        model: see :class:`Averager`.
        optimizer: see :class:`Averager`.
        length: the length of the run, such as "90ep" or "5000it", if it is known; a
            share of it may be given as ``start``.
    """

    def __init__(
        self,
        settings: AveragingSettings,
        model: nn.Module,
        optimizer: Optimizers = None,
        length: str | None = None,
    ) -> None:
        options = settings.options
        if "start" in options:
            options = {**options, "start": in_run(options["start"], length)}
        names = _SHARED if settings.method not in _LATE else (*_SHARED, "start")
        shared = {name: options[name] for name in names if name in options}  # type: ignore[literal-required]
        # Created first: their hooks must see a step's weights before a switch.
        self.further: dict[str, Averager] = {
            f"ema_{decay}": create_averager(
                "ema", model, optimizer, **(shared | {"decay": decay})
            )
            for decay in settings.decays or ()
        }
        """Averages at the further decays, by metric suffix."""
        self.averager: Averager = create_averager(
            settings.method, model, optimizer, **options
        )
        self.best: Best | None = None
        if settings.best is not None:
            self.best = settings.best.make(self.averager)
        self.is_training = True
        """Whether training is under way, so that evaluations count for ``best``."""
        self._settings = settings
        self._behind = 0
        self._unscored: set[frozenset[str]] = set()
        self._stage = stage_of(unwrap(model))

    def _all(self) -> Iterator[Averager]:
        yield from self.further.values()
        yield self.averager

    # Counting.

    def update(self) -> None:
        """Count one step; only for averages without an optimizer."""
        for averager in self._all():
            averager.update()

    def end_epoch(self) -> dict[str, float]:
        """End the epoch; return values to log, by name."""
        logs = self._settings.log_averaging
        moved = [distance(averager) if logs else 0.0 for averager in self._all()]
        for averager in self._all():
            averager.end_epoch()
        values: dict[str, float] = {}
        if logs:
            ends = [*(f"_{name}" for name in self.further), ""]
            for averager, end, far in zip(self._all(), ends, moved, strict=True):
                of_one = describe_average(averager, far)
                values |= {f"{name}{end}": value for name, value in of_one.items()}
        return values

    def end_epochs(self, finished: int) -> dict[str, float]:
        """Call :meth:`end_epoch` until ``finished`` epochs have ended."""
        values: dict[str, float] = {}
        while self.averager.epochs < finished:
            values = self.end_epoch()
        return values

    def finish(self) -> None:
        """Mark the training as finished; from now on, the best average is shown."""
        self.is_training = False
        if self.best is not None and not self.best.scores:
            assert self._settings.best is not None
            metric = self._settings.best.metric
            warnings.warn(
                f"No held-out evaluation reported {metric!r}, so the last average is "
                "used as the best.",
                stacklevel=3,
            )

    def detach(self) -> None:
        """Remove the hooks from the optimizer."""
        for averager in self._all():
            averager.detach()

    # Evaluation.

    def shown(self) -> Averager | Best:
        """Return the average to show and save: after training, the best one."""
        return self.averager if self.is_training or self.best is None else self.best

    def evaluated(self) -> Averager | Best | None:
        """Return what an evaluation measures first; None means the live weights."""
        is_live = self.is_training and self._settings.evaluate == "live"
        return None if is_live else self.shown()

    def evaluated_view(self) -> AbstractContextManager[Any]:
        """Put what an evaluation measures first into the model, for a block."""
        evaluated = self.evaluated()
        return self.live_view() if evaluated is None else evaluated.averaged()

    def live_view(self) -> AbstractContextManager[Any]:
        """Put the live weights into the model for a block, even inside another view."""
        return self._stage.showing(None)

    @property
    def measures_more(self) -> bool:
        """Whether evaluations during training measure further weights."""
        more = self._settings.evaluate == "both" or bool(self.further)
        return self.is_training and more

    def measure_more(
        self, measure: Callable[[], Mapping[str, Any] | None]
    ) -> dict[str, Any]:
        """Measure the live weights and the further averages, if requested.

        Leaves the random state of the training unchanged.

        Args:
            measure: returns the metrics of the model's current weights.

        Returns:
            All metrics, with a suffix that names the weights.
        """
        found: dict[str, Any] = {}
        if not self.measures_more:
            return found
        views: dict[str, AbstractContextManager[Any]] = {
            f"_{name}": one.averaged() for name, one in self.further.items()
        }
        if self._settings.evaluate == "both":
            views[LIVE] = self.live_view()
        for end, view in views.items():
            with random_numbers_kept(), view:
                metrics = measure() or {}
            found |= {f"{name}{end}": value for name, value in metrics.items()}
        return found

    def note(self, metrics: Mapping[str, Any]) -> None:
        """Pass the metrics of an evaluation during training to the best average."""
        if self.best is not None and self.is_training:
            assert self._settings.best is not None
            score = self._settings.best.read(metrics)
            self.best.update(score)
            self._warn_of_lag(score, metrics)

    def note_one_of_several(self, metrics: Mapping[str, Any]) -> None:
        """Same as :meth:`note`, but skip an evaluation of other data, without a score.

        Warn if such an evaluation comes a second time before the first score.
        """
        rule, names = self._settings.best, frozenset(metrics)
        if self.best is None or rule is None or rule.metric in names:
            self.note(metrics)
            return
        if names in self._unscored and self.is_training and not self.best.scores:
            warnings.warn(
                f"best needs the metric {rule.metric!r}, but evaluations have only "
                f"reported {', '.join(sorted(frozenset().union(*self._unscored)))}.",
                stacklevel=3,
            )
        self._unscored.add(names)

    def _warn_of_lag(self, score: float, metrics: Mapping[str, Any]) -> None:
        """Warn once if the live weights are clearly better twice in a row."""
        rule = self._settings.best
        assert rule is not None
        live = float(metrics.get(f"{rule.metric}{LIVE}", math.nan))
        is_watched = isinstance(self.averager, LateStart) and not self.averager.active
        if not (is_watched and math.isfinite(live) and self._behind < _EVALUATIONS):
            return
        is_behind = rule.is_clearly_worse(score, live, errors=2)
        self._behind = self._behind + 1 if is_behind else 0
        if self._behind == _EVALUATIONS:
            warnings.warn(
                f"The live weights have a better {rule.metric} than the average "
                f"({live:.4g} and {score:.4g}), by more than two standard "
                f"errors in {_EVALUATIONS} evaluations in a row: its window is too "
                "long, or the data have changed. Use a shorter window, such as "
                "'fraction(0.02)', or call restart() where a new phase begins.",
                stacklevel=3,
            )

    # Saving and resuming.

    def state_dict(self) -> dict[str, Any]:
        """Return the main averager's state, with that of the others, if any."""
        state = self.averager.state_dict()
        if self.further:
            state[_FURTHER] = {n: one.state_dict() for n, one in self.further.items()}
        if self.best is not None:
            state[_BEST] = self.best.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the state; warn about averages missing from it, which start fresh."""
        others = {name: state[name] for name in (_FURTHER, _BEST) if name in state}
        main = {name: value for name, value in state.items() if name not in others}
        self.averager.load_state_dict(main)
        for name, averager in self.further.items():
            if name in others.get(_FURTHER, {}):
                averager.load_state_dict(others[_FURTHER][name])
            else:
                warn_without_state(f"the average {name}")
        if self.best is not None and _BEST in others:
            self.best.load_state_dict(others[_BEST])
        elif self.best is not None:
            warn_without_state("the best average")


class HasAverages:
    """Read-only access to a callback's averages."""

    _averages: Averages | None = None

    @property
    def averager(self) -> Averager | None:
        """The main averager; None until training begins."""
        return None if self._averages is None else self._averages.averager

    @property
    def best(self) -> Best | None:
        """The best average, if requested; None until training begins."""
        return None if self._averages is None else self._averages.best

    @property
    def further(self) -> dict[str, Averager]:
        """Averages at further decays, by name, such as "ema_0.99"."""
        return {} if self._averages is None else self._averages.further

    def _training(self, train: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call ``train``; when it ends, even by an exception, training is over."""
        try:
            return train(*args, **kwargs)
        finally:
            if self._averages is not None:
                self._averages.is_training = False


def _check_decays(decays: Any) -> None:
    if decays is None:
        return
    if isinstance(decays, (str, Mapping)) or not isinstance(decays, Sequence):
        raise ValueError(
            f"decays must be a list such as [0.99, 0.999], got {decays!r}."
        )
    for decay in decays:
        if isinstance(decay, bool) or not isinstance(decay, (int, float, str)):
            raise ValueError(f"decays must be numbers or strings, got {decay!r}.")
        as_schedule(decay, auto=fraction())  # raises for an invalid decay
    if len(set(decays)) < len(decays):
        raise ValueError(f"decays must differ from each other, got {decays!r}.")
