"""Averaging methods of a comparison, and which of them share a training."""

import inspect
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from switch_ema.averaging.averager import Averager
from switch_ema.averaging.methods.swa import swa_budget
from switch_ema.averaging.methods.switch_ema import DEFAULT_DECAY, SwitchEMA
from switch_ema.averaging.registry import METHODS
from switch_ema.averaging.schedules import auto
from switch_ema.averaging.schedules.adaptive import Adaptive, Probe
from switch_ema.averaging.schedules.auto import WINDOWS
from switch_ema.averaging.schedules.decay import constant, cosine
from switch_ema.averaging.schedules.intervals import Steps
from switch_ema.averaging.schedules.spelling import AUTO
from switch_ema.averaging.schedules.start import in_run
from switch_ema.averaging.step.hooks import Optimizers
from switch_ema.bench.errors import UsageError
from switch_ema.bench.method_names import (
    ADAPTIVE,
    BEST,
    CONTROL,
    DESCRIPTIONS,
    PLAIN,
    base_name,
    is_adaptive,
    uses_held_out,
)
from switch_ema.bench.option_docs import Option, meanings_of, values_of
from switch_ema.bench.spec import EPOCHS, SHARE, Change, Spec, parse_method_spec
from switch_ema.bench.text import unknown

FILTERS = ("include", "exclude")
BUDGET = "budget"
"""Option of swa: train for so many times the usual epochs, and average the rest."""
_MODELS = 5
"""Sets of weights that SWA with a budget averages, as in the paper."""
_SWITCH_EMA = "switch-ema"
_LOOKAHEAD = "lookahead"


@dataclass(frozen=True)
class Method:
    """A method of a comparison with its options, labelled as the user typed it."""

    label: str
    spec: Spec

    @property
    def name(self) -> str:
        """Name of the method, without ``+best``."""
        return base_name(self.spec.name)

    @property
    def keeps_best(self) -> bool:
        """Whether held-out values decide which epoch's average it returns."""
        return self.spec.name.endswith(BEST)

    @property
    def uses_held_out(self) -> bool:
        """Whether it uses held-out data, to choose an epoch or when to switch."""
        return uses_held_out(self.spec.name, self.spec.options)

    @property
    def decides_by_seed(self) -> bool:
        """Whether it makes decisions per seed, which rules out stacking."""
        return is_adaptive(self.spec.options)

    @property
    def budget(self) -> float | None:
        """Its epochs relative to the others', if it trains for longer."""
        return self.spec.options.get(BUDGET) if self.name == "swa" else None

    @property
    def shares_training(self) -> bool:
        """Whether it only reads the live weights, so it can share plain training."""
        name = self.name
        if self.budget is not None:
            return False
        return name == PLAIN or (name != CONTROL and not METHODS[name].active)

    @property
    def changes(self) -> str:
        """Canonical form of its changes of optimizer and epochs, for comparison."""
        return ",".join(map(str, effective(self.spec.changes)))

    def make(
        self,
        model: nn.Module,
        optimizer: Optimizers,
        *,
        epochs: int,
        folder: Path,
        probe: Probe | None = None,
    ) -> Averager | None:
        """Attach the averager to a model in training; None for plain.

        Args:
            model: the model in training.
            optimizer: its optimizer.
            epochs: number of epochs, without those of a budget.
            folder: for snapshots.
            probe: evaluates held-out data, for adaptive switches.
        """
        if self.name in (PLAIN, CONTROL):
            if self.spec.options:
                raise TypeError(f"{self.spec.name} has no options")
            return None
        try:
            spec = Spec(self.name, self.spec.options)
            options = _options(spec, epochs, folder, probe)
            averager = METHODS[self.name](model, optimizer, **options)
        # torch raises the last two for a missing device.
        except (ValueError, RuntimeError, AssertionError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise UsageError(f"method {self.label!r}: {reason}") from None
        if isinstance(averager, SwitchEMA):
            # The results show what a decay too close to 1 does. Not a warning filter:
            # within a trial this is the user's process.
            averager.warns_of_slow_progress = False
        return averager

    def describe(self, epochs: int) -> str:
        """List the options with their values, including defaults.

        Common ones, such as the dtype of the shadow, are listed only if given.
        """
        if self.name not in METHODS:
            return ""
        own = inspect.signature(METHODS[self.name]).parameters
        common = {"folder", *inspect.signature(Averager).parameters}
        options = {n: p.default for n, p in own.items() if n not in common}
        spec = Spec(self.name, self.spec.options)
        options |= _options(spec, epochs, Path("unused"), _no_values)
        shown = {n: v for n, v in options.items() if v is not None and n != "folder"}
        return ", ".join(f"{name}={_spelled(value)}" for name, value in shown.items())


def parse_method(text: str, defaults: Mapping[str, Mapping[str, Any]]) -> Method:
    """Parse a method and check its options by building it on a tiny model."""
    spec = parse_method_spec(text)
    if spec.name not in DESCRIPTIONS:
        raise unknown("method", spec.name, DESCRIPTIONS)
    name = base_name(spec.name)
    options = spec.with_defaults(defaults.get(name, {})).options
    # Filters refer to tensors that the tiny model does not have.
    filters = {
        key: _patterns(value)
        for key, value in options.items()
        if key in FILTERS and name in METHODS
    }
    others = {key: value for key, value in options.items() if key not in filters}
    tiny = nn.Linear(1, 1)
    sgd = torch.optim.SGD(tiny.parameters(), lr=0.1)
    # f is known only once training starts; any valid value checks the rest.
    checked = {key: 0.5 if value == SHARE else value for key, value in others.items()}
    try:
        method = Method(
            text, Spec(spec.name, checked if name == _LOOKAHEAD else others)
        )
        method.make(tiny, sgd, epochs=1, folder=Path("unused"), probe=_no_values)
    except TypeError:
        raise UsageError(
            f"method {text!r}: the options of {spec.name} are "
            f"{', '.join(options_of(spec.name)) or 'none'}."
        ) from None
    return Method(text, replace(spec, options={**others, **filters}))


def method_of(label: str) -> Method:
    """Parse a method as typed, without the task's options."""
    return Method(label, parse_method_spec(label))


def effective(changes: Iterable[Change]) -> list[Change]:
    """Drop factors of 1, which change nothing."""
    return [c for c in changes if not (c.is_factor and c.value == 1)]


def control_for(control: Method, methods: Sequence[Method]) -> str:
    """Find the Switch EMA that defines f for a control that uses it.

    Controls are ``lr*f``, ``epochs*f`` and Lookahead with ``alpha=f``.

    The one with the same options as the control, otherwise the first, otherwise one
    with the task's default options. Empty if the method is not such a control.
    """
    if not any(change.value == SHARE for change in control.spec.changes) and not (
        _has_share_as_alpha(control)
    ):
        return ""
    found = [m for m in methods if m.spec.name == _SWITCH_EMA]
    alike = [m for m in found if m.spec.options == control.spec.options]
    partners = [*alike, *found]
    return str(replace(partners[0].spec, changes=())) if partners else _SWITCH_EMA


def surviving_share(
    label: str, defaults: Mapping[str, Mapping[str, Any]], steps_per_epoch: int
) -> float:
    """Return the share of linear progress between switches that a switch keeps.

    Args:
        label: a Switch EMA.
        defaults: the task's options for methods.
        steps_per_epoch: optimizer steps per epoch.
    """
    spec = parse_method_spec(label)
    options = spec.with_defaults(defaults.get(spec.name, {})).options
    decay = options.get("decay", DEFAULT_DECAY)
    every = _steps(options.get("switch_every", 1))
    is_number = isinstance(every, (int, float))
    is_known = isinstance(decay, (int, float)) or decay == AUTO
    if not is_known or not (is_number or type(every) is Steps):
        raise UsageError(
            f"{SHARE} needs a Switch EMA with a numeric decay and interval, got "
            f"{label}."
        )
    steps = every.n if isinstance(every, Steps) else every * steps_per_epoch
    final = max(1 - WINDOWS / steps, 0) if decay == AUTO else decay
    followed = auto.surviving_share(final, steps)
    live_share = float(options.get("live_share", 0))
    return float(live_share + (1 - live_share) * followed)


def with_share(changes: Iterable[Change], share: float) -> tuple[Change, ...]:
    """Replace ``f`` by its value."""
    return tuple(
        replace(change, value=share) if change.value == SHARE else change
        for change in changes
    )


def _has_share_as_alpha(method: Method) -> bool:
    """Whether a method is Lookahead with ``alpha=f``."""
    return method.name == _LOOKAHEAD and method.spec.options.get("alpha") == SHARE


def with_share_as_alpha(method: Method, share: float, steps: int) -> Method:
    """Replace ``alpha=f`` of Lookahead by its value; k is one epoch by default.

    Its slow weights then keep what Switch EMA keeps, without an average in between.
    """
    if not _has_share_as_alpha(method):
        return method
    options = {"k": steps, **method.spec.options, "alpha": share}
    return replace(method, spec=replace(method.spec, options=options))


def of_optimizer(changes: Iterable[Change]) -> list[Change]:
    """Select the changes of the optimizer.

    >>> changes = method_of("ema@epochs*2,lr*f").spec.changes
    >>> [str(change) for change in of_optimizer(changes)]
    ['lr*f']
    """
    return [change for change in changes if change.option != EPOCHS]


def changed_epochs(epochs: int, changes: Iterable[Change]) -> int:
    """Apply changes of the epochs that are numbers; those by f are left.

    >>> changes = method_of("ema@epochs*0.43").spec.changes
    >>> changed_epochs(120, changes), changed_epochs(1, changes)
    (52, 1)
    >>> changed_epochs(120, method_of("ema@epochs=60,epochs*f").spec.changes)
    60
    """
    for change in changes:
        if change.option == EPOCHS and change.value != SHARE:
            value = epochs * change.value if change.is_factor else change.value
            epochs = max(1, round(value))
    return epochs


def options_of(name: str) -> dict[str, str]:
    """Return a method's options with their defaults in a comparison."""
    name = base_name(name)
    if name not in METHODS:
        return {}
    parameters = inspect.signature(METHODS[name]).parameters
    found = {
        key: parameter.default
        for key, parameter in parameters.items()
        if key not in ("model", "optimizer", "folder")
    }
    given = _options(Spec(name, {}), 1, Path("unused"))
    found |= {key: given[key] for key in found.keys() & given.keys()}
    if name in ("swa", "swag"):
        found["start"] = "3/4 of the epochs"
    if name == "swa":
        found[BUDGET] = None
    if "decay" in found:
        found["warmup"] = "count"
    return {key: _spelled(value) for key, value in found.items()}


_INTERVAL = "epochs (0.5: twice per epoch), or steps as in 100it"
_TYPED = {
    "budget": "a number above 1",
    "decay": "a number in [0, 1), auto, or a schedule such as half_life(500it)",
    **dict.fromkeys(("switch_every", "every", "period"), _INTERVAL),
    **dict.fromkeys(FILTERS, 'a name or glob, or several: ("head*","norm*")'),
    "warmup": "count or none",
    "dtype": "float32, bfloat16 or another dtype of torch",
    "device": "cpu, cuda or another device of torch",
    "sigma_rel": "numbers in brackets, as in (0.05,0.1)",
}
"""How to type values that are objects in Python."""


def described_options(name: str) -> list[Option]:
    """List a method's options with defaults, meanings and how to type their values.

    >>> [option.values for option in described_options("lookahead")][:2]
    ['a whole number', 'a number']
    """
    kind = METHODS.get(base_name(name))
    if kind is None:
        return []
    meanings = {**meanings_of(kind), "warmup": _WARMUP, BUDGET: _LONGER}
    found = []
    for option, default in options_of(name).items():
        values = _TYPED.get(option) or values_of(kind, option)
        if option == "start" and not values:  # that of EMA takes more than a number
            values = "epochs, steps as in 500it, or a share as in 10% of 90ep"
        if option == "switch_every" and base_name(name) == _SWITCH_EMA:
            values += f", or {ADAPTIVE}: held-out data decides"
        if default.startswith("Steps(") and option == "every":
            values = "steps as in 100it"  # epochs are refused
        typed = re.sub(r"Steps\(n=(\d+)\)", r"\1it", default)
        meaning = _IN_PYTHON.sub("", meanings.get(option, ""))
        found.append(Option(option, typed, meaning, values))
    return found


_IN_PYTHON = re.compile(
    r"^epochs, Steps\(n\) or a callable: |^names, globs or a predicate: "
    r"|, Steps\(n\),.*?(?=\. |$)|; a callable .*$"
)
"""Parts of a meaning about values that cannot be typed."""


_LONGER = (
    "train for so many times the usual epochs, and average five sets of weights of the "
    "rest, at half the learning rate"
)
_WARMUP = (
    "count lets the decay grow with the steps, so that the initial weights are soon "
    "forgotten; none keeps it constant"
)


def options_in_epochs(method: Method) -> list[str]:
    """Name the options of a method that count epochs rather than steps.

    >>> options_in_epochs(method_of("switch-ema")), options_in_epochs(method_of("ema"))
    (['switch_every'], [])
    >>> options_in_epochs(method_of("switch-ema:switch_every=100it"))
    []
    """
    if method.name not in METHODS:
        return []
    parameters = inspect.signature(METHODS[method.name]).parameters
    return [
        name
        for name in ("switch_every", "period", "every")
        if name in parameters
        and not isinstance(
            _steps(method.spec.options.get(name, parameters[name].default)), Steps
        )
    ]


def timing_of(method: Method, epochs: int) -> dict[str, Any]:
    """Return the options that decide when a method acts, with their values.

    >>> timing_of(method_of("lookahead"), epochs=4)
    {'k': 100}
    >>> timing_of(method_of("swa"), epochs=4)
    {'start': 3, 'every': 1}
    """
    if method.name not in METHODS:
        return {}
    kind = METHODS[method.name]
    names = ["start", "switch_start", "period", "switch_every", "every", "update_every"]
    # LAWA's k is a number of snapshots.
    names += ["k"] if kind.active else []
    options = {n: p.default for n, p in inspect.signature(kind).parameters.items()}
    spec = Spec(method.name, method.spec.options)
    options |= _options(spec, epochs, Path("unused"), _no_values)
    return {name: options[name] for name in names if name in options}


def _no_values(model: nn.Module) -> tuple[float, float]:
    """Placeholder for the probe when only options are checked."""
    return math.nan, math.nan


def _options(
    spec: Spec, epochs: int, folder: Path, probe: Probe | None = None
) -> dict[str, Any]:
    """Fill in what depends on the run: warm-up, start, folder, steps, probe."""
    options = {key: _steps(value) for key, value in spec.options.items()}
    warmup = options.pop("warmup", "count")
    if warmup not in ("count", "none"):
        raise ValueError(f"warmup must be 'count' or 'none', got {warmup!r}.")
    if warmup == "none":
        if isinstance(options.get("decay"), str):
            raise ValueError(
                f"warmup=none needs a numeric decay, got {options['decay']!r}."
            )
        if isinstance(options.get("decay"), float):
            options["decay"] = constant(options["decay"])
    if isinstance(options.get("dtype"), str):
        options["dtype"] = _dtype(options["dtype"])
    if is_adaptive(options):
        if probe is None:
            raise ValueError("switch_every=adaptive needs held-out data.")
        options["switch_every"] = Adaptive(probe)
    if "start" in options:
        options["start"] = in_run(options["start"], f"{epochs}ep")
    if spec.name == "swa" and BUDGET in options:
        total, start = swa_budget(epochs, options.pop(BUDGET))
        options.setdefault("start", start)
        options.setdefault("every", (total - start) / _MODELS)
    elif spec.name in ("swa", "swag"):
        # The usual schedule: average the last quarter of the training.
        options.setdefault("start", int(0.75 * epochs))
    if spec.name == _LOOKAHEAD:
        options.setdefault("k", 100)  # the paper's setting
    if spec.name == "posthoc-ema":
        options.setdefault("folder", folder / "posthoc")
    return options


def _dtype(name: str) -> Any:
    """Look up a torch dtype by name; unknown names are returned for a later error.

    >>> _dtype("bfloat16"), _dtype("torch.float32"), _dtype("banana")
    (torch.bfloat16, torch.float32, 'banana')
    """
    found = getattr(torch, name.removeprefix("torch."), None)
    return found if isinstance(found, torch.dtype) else name


def _spelled(value: Any) -> str:
    """Format an option's value.

    >>> _spelled(0.999), _spelled(constant(0.9)), _spelled(Steps(100))
    ('0.999', 'constant(0.9)', 'Steps(n=100)')
    """
    return str(value)


def _patterns(value: Any) -> Any:
    """Interpret numbers, such as 0 or (0, 2), as module names."""
    if isinstance(value, (tuple, list)):
        return [str(one) for one in value]
    return str(value) if isinstance(value, (int, float)) else value


def _steps(value: Any) -> Any:
    """Parse "100it" as a number of steps."""
    if isinstance(value, str) and value.endswith("it") and value[:-2].isdigit():
        return Steps(int(value[:-2]))
    return value


# In MoCo and BYOL the averaged model computes the training targets. The average is that
# of the compared method: plain training has none, so the student is its own teacher;
# EMA gives the usual momentum teacher; with Switch EMA the student continues from its
# teacher's weights at every switch.


def as_teacher(
    method: Method, *, steps: int, final_decay: float, exclude: tuple[str, ...]
) -> Method:
    """Configure an averaging method for a teacher.

    Args:
        method: The method as the comparison names it.
        steps: Optimizer steps of the whole training.
        final_decay: A numeric decay rises to this value along a cosine over the
            training, unless the method has an option ``warmup``.
        exclude: Names of tensors that are not averaged.
    """
    options = dict(method.spec.options)
    if method.name in (PLAIN, CONTROL):
        return method
    decay = options.get("decay")
    if isinstance(decay, float) and "warmup" not in options:
        final = max(decay, final_decay)
        options["decay"] = cosine(decay, steps=steps, final=final)
    if exclude:
        given = options.get("exclude") or ()
        options["exclude"] = [*exclude, *([given] if isinstance(given, str) else given)]
    return replace(method, spec=replace(method.spec, options=options))
