"""Configuration of a comparison, stored as JSON with its results."""

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import tyro

from switch_ema._checks import check_positive
from switch_ema.bench.errors import UsageError
from switch_ema.bench.fingerprints import fingerprint, inputs_of
from switch_ema.bench.optimizers.catalog import optimizer_info
from switch_ema.bench.recipe import (
    LATER,
    Metric,
    Recipe,
    StepOptions,
    is_lower_better,
    roundings_of,
    stored_fields,
)
from switch_ema.bench.spec import (
    KINDS,
    SCRIPT,
    SEED,
    command_of,
    is_script,
    parse_method_spec,
    parse_spec,
    parse_variation,
    parse_variations,
    task_slug,
)
from switch_ema.bench.text import read_json

_SEEDS, _MAX_SEEDS, _ROUND = 8, 64, 4
MOST_SEEDS, MOST_EPOCHS = 100_000, 1_000_000
# Random generators take seeds below 2**32, and tuning uses seeds above these.
_LIMITS = (
    *(("seeds", 1, MOST_SEEDS), ("first_seed", 0, 2**31), ("tune", 0, 1_000)),
    *(("max_seeds", 1, MOST_SEEDS), ("round", 1, MOST_SEEDS)),
)

LEARNING_RATE = "lr"

_OF_TASKS = (
    *("optimizer", "epochs", "schedule", "warmup_epochs", "clip", "accumulate"),
    *("precision", "layer_decay", "evaluate_every", "tune", "sweep", "equal_budget"),
    *("deploy", "compile", "channels_last", "tf32"),
)
"""Settings that a script controls itself."""

SCRIPT_METHODS = ("plain", "ema", "switch-ema")
"""Default methods for a script."""
_DEFAULT_METHODS = ("plain", "ema", "swa", "lookahead", "lawa", "switch-ema")

WAITED_FOR = {
    "every": "every verdict",
    "switch-ema": "the verdict on Switch EMA against EMA",
}
"""What seeds can be added for, as the subject of "settled", by ``settle``."""


@dataclass(frozen=True, kw_only=True)
class CompareConfig(StepOptions):
    """Everything that the results depend on."""

    tasks: Annotated[
        tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="[TASK ...]")
    ] = ("noisy-digits", "digits")
    """Names with options (images:noise=0.3), or path/to/file.py:ClassName."""
    methods: tuple[str, ...] = _DEFAULT_METHODS
    """Names with options, such as ema:decay=0.99, or ema@lr*0.5 for EMA at half the
    learning rate; the first one is the baseline."""
    optimizer: str | None = None
    """Name with options, such as adamw:lr=1e-3; default: the task's own."""
    seeds: int = _SEEDS
    """Seeds of each method, the same ones for all; more than before extend a run."""
    first_seed: int = 0
    """First seed; the others follow it."""
    epochs: int | None = None
    """Length of a training; default: the task's own, as for the options below."""
    schedule: str | None = None
    """Learning rate schedule: constant, step, cosine or one-cycle."""
    warmup_epochs: float | None = None
    """Epochs of linear learning rate warm-up. If the task's own warm-up is longer than
    the given epochs, it keeps its share of the training."""
    clip: float | None = None
    """Maximum gradient norm."""
    equal_budget: bool = dataclasses.field(default=False, metadata=LATER)
    """Give all trainings the same number of forward-backward passes: SAM, with two per
    step, gets half the epochs, and swa:budget=1.25 no more epochs than the others."""
    layer_decay: float | None = None
    """Learning rate factor per layer, counted from the output."""
    stack: str = dataclasses.field(default="off", metadata=LATER)
    """Train many seeds as one stacked model where that is faster (auto), the learning
    rates that are compared as well (all), or one by one (off)."""
    tune: int | str = 0
    """Tune each method on each task's validation split before the comparison, all from
    the same candidates: lr, lr=0.01,0.1 (any option), lr,epochs (every combination), or
    a number of values to try for the method's main option."""
    sweep: str | None = dataclasses.field(default=None, metadata=LATER)
    """Repeat the comparison at each value of an option of the optimizer, the methods or
    the tasks, such as lr=0.0125,0.05,0.2 or decay=0.9,0.99."""
    metric: str | None = dataclasses.field(default=None, metadata=LATER)
    """Metric of a script that decides; default: the first that it reports."""
    lower_is_better: bool = dataclasses.field(default=False, metadata=LATER)
    """Lower values of a script's metric are better; implied for losses and errors."""
    higher_is_better: bool = dataclasses.field(default=False, metadata=LATER)
    """Higher values of a script's metric are better; the default for other names."""
    smallest_effect: float | None = dataclasses.field(default=None, metadata=LATER)
    """Smallest difference that matters, in the unit of the metric that decides: "no
    difference" needs an interval between minus and plus this. Default: the metric's
    own, else 0.5 points for metrics in %, else 1% of the baseline's value."""
    until_decided: bool = dataclasses.field(default=False, metadata=LATER)
    """Add seeds until every verdict is settled. Intervals are wider, but valid although
    one looks after every round."""
    max_seeds: int = dataclasses.field(default=_MAX_SEEDS, metadata=LATER)
    """With until_decided: number of seeds at which undecided tasks stop."""
    round: int = dataclasses.field(default=_ROUND, metadata=LATER)
    """With until_decided: seeds that each round adds."""
    settle: str = dataclasses.field(default="every", metadata=LATER)
    """With until_decided: wait for every verdict, or only for that on Switch EMA
    against EMA (switch-ema)."""
    deploy: str | None = dataclasses.field(default=None, metadata=LATER)
    """Evaluate the final weights again after rounding them to each of bf16,int8,int4,
    with a scale per channel for integers; the unrounded values still decide."""
    rounds: Annotated[tuple[int, ...], tyro.conf.Fixed, tyro.conf.Suppress] = (
        dataclasses.field(default=(), metadata=LATER)
    )
    """Numbers of seeds that the run had before it was extended to ``seeds``.

    Each extension stacks its own seeds, so the last bits of the values depend on it.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least, most in _LIMITS:
            value = getattr(self, name)
            if isinstance(value, str):
                continue
            if value < least:
                raise UsageError(f"{name} must be at least {least}, got {value}.")
            if value > most:
                raise UsageError(f"{name} must be at most {most}, got {_short(value)}.")
        for name in ("epochs", "evaluate_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} must be at least 1, got {value}.")
            if value is not None and value > MOST_EPOCHS:
                raise UsageError(
                    f"{name} must be at most {MOST_EPOCHS}, got {_short(value)}."
                )
        bounds = (0, *self.rounds, self.seeds)
        if any(after <= before for before, after in pairwise(bounds)):
            raise UsageError(
                f"rounds must increase from 1 to less than seeds, {self.seeds}, got "
                f"{_shown(self.rounds)}."
            )
        if isinstance(self.tune, str):
            parse_variations(self.tune)
        if self.sweep is not None:
            parse_variation(self.sweep)
            if self.tune:
                raise UsageError("sweep and tune cannot be combined; leave one out.")
        if self.until_decided and (self.tune or self.sweep is not None):
            raise UsageError(
                "until_decided cannot be combined with tune or sweep, whose settings "
                "would be chosen or compared anew at every look; leave one out."
            )
        if self.settle not in WAITED_FOR:
            raise UsageError(
                f"settle must be {' or '.join(WAITED_FOR)}, got {self.settle!r}."
            )
        names = {parse_method_spec(label).name for label in self.methods}
        if self.until_decided and self.settle not in ("every", *names):
            raise UsageError(
                f"settle {self.settle} needs {self.settle} among the methods, got "
                f"{', '.join(self.methods)}."
            )
        self._check_script()
        if self.deploy is not None and not roundings_of(self.deploy):
            raise UsageError("deploy must name a rounding, such as int8, got nothing.")
        if self.smallest_effect is not None:
            try:
                check_positive("smallest_effect", self.smallest_effect)
            except ValueError as error:
                raise UsageError(str(error)) from None
        if self.stack not in ("auto", "all", "off"):
            raise UsageError(f"stack must be auto, all or off, got {self.stack!r}.")
        for name in ("tasks", "methods"):
            values = getattr(self, name)
            twice = {value for value in values if values.count(value) > 1}
            if not values or twice:
                given = f"{sorted(twice)} twice" if twice else "none"
                raise UsageError(f"{name} must be given once each, got {given}.")
        texts = (self.optimizer, self.schedule, self.sweep, str(self.tune))
        for text in (*self.tasks, *self.methods, *texts):
            if text is not None and not _is_text(text):
                raise UsageError(f"{text!a} is not valid text.")

    def _check_script(self) -> None:
        """Refuse settings that do not apply to a script."""
        if self.lower_is_better and self.higher_is_better:
            raise UsageError(
                "lower_is_better and higher_is_better exclude each other; drop one."
            )
        scripts = [task for task in self.tasks if is_script(task)]
        if len(scripts) < len(self.tasks):
            if scripts:
                raise UsageError("a script cannot be compared together with tasks.")
            return
        for name in _OF_TASKS:
            if getattr(self, name) not in (None, 0):
                raise UsageError(
                    f"{name} does not apply to a script, which controls its own "
                    "training; change the command instead."
                )
        for task in scripts:
            words = command_of(task)
            if not words or not any(SEED in word for word in words):
                raise UsageError(
                    f"the script {task.removeprefix(SCRIPT)!r} needs a placeholder for "
                    f"the seed, as in python train.py --seed {SEED}."
                )

    def metrics_of_script(self, reported: Sequence[str]) -> tuple[Metric, ...]:
        """Return the metrics that a script reported, with the deciding one first."""
        first = [self.metric] if self.metric in reported else []
        names = dict.fromkeys([*first, *reported])
        given = self.lower_is_better or self.higher_is_better
        return tuple(
            Metric(
                name=name,
                higher_is_better=self.higher_is_better
                if given and index == 0
                else not is_lower_better(name),
            )
            for index, name in enumerate(filter(None, names))
        )

    def recipe_for(self, recipe: Recipe) -> Recipe:
        """Override a task's recipe with the settings given here."""
        names = {field.name for field in dataclasses.fields(Recipe)}
        given = {
            name: value
            for name, value in dataclasses.asdict(self).items()
            if name in names - {"methods"} and value is not None and value is not False
        }
        epochs, warmup = self._epochs(recipe), recipe.warmup_epochs
        if "warmup_epochs" not in given and warmup > epochs:
            given["warmup_epochs"] = warmup / recipe.epochs * epochs
        if self.passes > 1:
            affordable = max(1, epochs // self.passes)
            warmup = given.get("warmup_epochs", warmup)
            given["warmup_epochs"] = warmup * affordable / epochs
            given["epochs"] = affordable
        return dataclasses.replace(recipe, **given)

    @property
    def passes(self) -> int:
        """Forward-backward passes per step that count against the epochs."""
        if not self.equal_budget or self.optimizer is None:
            return 1
        return optimizer_info(parse_spec(self.optimizer).name).passes

    def _epochs(self, recipe: Recipe) -> int:
        return recipe.epochs if self.epochs is None else self.epochs

    def to_json(self) -> str:
        """Serialize the configuration; equal configurations give equal texts."""
        return json.dumps(stored_fields(self), indent=2, sort_keys=True)

    @classmethod
    def from_json(cls, text: str, where: str = "the configuration") -> "CompareConfig":
        """Parse the output of :meth:`to_json`; unknown keys are refused."""
        values = read_json(text, where)
        if not isinstance(values, dict):
            raise UsageError(f"{where} must be a JSON object.")
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise UsageError(
                f"{where} has unknown keys {', '.join(unknown)}; "
                f"known are {', '.join(sorted(known))}."
            )
        hints = get_type_hints(cls)
        read = {key: _read(where, key, v, hints[key]) for key, v in values.items()}
        return cls(**read)

    @property
    def default_name(self) -> str:
        """Name a run after its tasks and a hash, so that repeating it resumes it.

        The hash covers the task files: an edited file is a different task. It does not
        cover the number of seeds, to which more can be added, nor how the results are
        judged.
        """
        return self._name(self.identity)

    @property
    def earlier_name(self) -> str:
        """Name given by 0.2.0 and earlier: its hash covers the number of seeds."""
        return self._name(dataclasses.replace(self, **_JUDGING).to_json())

    def _name(self, settings: str) -> str:
        text = settings + self.sources
        digest = hashlib.sha1(text.encode()).hexdigest()
        return f"{task_slug(*self.tasks)}-{digest[:6]}"

    @property
    def identity(self) -> str:
        """The settings that every training depends on; equal for runs to be merged.

        Not the number of seeds, nor settings that only verdicts use.
        """
        own = dataclasses.replace(self, seeds=_SEEDS, rounds=(), **_JUDGING)
        return own.to_json()

    def extending(self, stored: "CompareConfig | None") -> "CompareConfig":
        """Add seeds to a stored configuration of the same identity; remove none.

        The smallest effect is the new one. A run whose seeds were added until it was
        decided must be judged accordingly ever after.
        """
        if stored is None:
            return self
        stored = dataclasses.replace(stored, smallest_effect=self.smallest_effect)
        if self.until_decided:
            names = ("until_decided", "max_seeds", "round", "settle")
            looks = {name: getattr(self, name) for name in names}
            stored = dataclasses.replace(stored, **looks)
        if self.seeds <= stored.seeds:
            return stored
        rounds = (*stored.rounds, stored.seeds)
        return dataclasses.replace(stored, seeds=self.seeds, rounds=rounds)

    @property
    def seeds_by_round(self) -> list[range]:
        """The seeds of the first run and of each extension."""
        bounds = [self.first_seed + n for n in (0, *self.rounds, self.seeds)]
        return [range(start, stop) for start, stop in pairwise(bounds)]

    @property
    def sources(self) -> str:
        """Fingerprints of the users' task files; built-in tasks have none."""
        return " ".join(filter(None, map(fingerprint, self.tasks)))

    @property
    def inputs(self) -> str:
        """Fingerprints of the scripts' other input files, as JSON."""
        seeds = range(self.first_seed, self.first_seed + self.seeds)
        return json.dumps(inputs_of(self.tasks, seeds), sort_keys=True)

    def inputs_added_to(self, stored: str) -> str:
        """Add the inputs of the last round's seeds to the stored ones.

        Other new files are left out, as the script may have created them.
        """
        known = {**inputs_of(self.tasks, ()), **json.loads(stored)}
        new = inputs_of(self.tasks, self.seeds_by_round[-1])
        added = {name: digest for name, digest in new.items() if name not in known}
        return json.dumps(json.loads(stored) | added, sort_keys=True)


_JUDGING: dict[str, Any] = {
    "smallest_effect": None,
    "until_decided": False,
    "max_seeds": _MAX_SEEDS,
    "round": _ROUND,
    "settle": "every",
}
"""Defaults of the settings that trainings do not depend on."""


def _is_text(text: str) -> bool:
    """Whether a text can be encoded: JSON may contain lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text


def _shown(value: Any) -> str:
    """Format a value that may be huge or deeply nested."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):
        return f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= 200 else f"{text[:200]}..."


def _short(value: int) -> str:
    """Format a number that may have thousands of digits."""
    return str(value) if value < 10**20 else "a number of more than 20 digits"


def _read(where: str, key: str, value: Any, hint: Any) -> Any:
    """Return a JSON value if it has the type of its field."""
    if get_origin(hint) is tuple:
        kind, name = (int, "numbers") if int in get_args(hint) else (str, "texts")
        if not isinstance(value, list) or not all(type(v) is kind for v in value):
            raise UsageError(
                f"{where}: {key} must be a list of {name}, got {_shown(value)}."
            )
        return tuple(value)
    kinds = get_args(hint) or (hint,)
    accepted = (*kinds, int) if float in kinds else kinds
    if type(value) not in accepted:
        words = " or ".join(KINDS[kind] for kind in kinds)
        raise UsageError(f"{where}: {key} must be {words}, got {_shown(value)}.")
    return value
