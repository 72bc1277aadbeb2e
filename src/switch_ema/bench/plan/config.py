"""What a comparison is: frozen, stored as JSON with the results, run again from it."""

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import tyro

from switch_ema.bench.errors import UsageError
from switch_ema.bench.fingerprints import fingerprint, inputs_of
from switch_ema.bench.recipe import (
    LATER,
    Metric,
    Recipe,
    is_lower_better,
    stored_fields,
)
from switch_ema.bench.spec import (
    KINDS,
    SCRIPT,
    SEED,
    command_of,
    is_script,
    parse_variation,
    task_slug,
)
from switch_ema.bench.text import read_json

MOST_SEEDS, MOST_EPOCHS = 100_000, 1_000_000
# Random number generators take seeds below 2**32; tuning has seeds behind these.
_LIMITS = (("seeds", 1, MOST_SEEDS), ("first_seed", 0, 2**31), ("tune", 0, 1_000))

LEARNING_RATE = "lr"

_OF_TASKS = (
    *("optimizer", "epochs", "schedule", "warmup_epochs", "clip", "accumulate"),
    *("precision", "layer_decay", "evaluate_every", "tune", "sweep"),
)
"""What a script decides by itself."""

SCRIPT_METHODS = ("plain", "ema", "switch-ema")
"""Without --methods, for a script."""
DEFAULT_METHODS = ("plain", "ema", "swa", "lookahead", "lawa", "switch-ema")


@dataclass(frozen=True, kw_only=True)
class CompareConfig:
    """Everything that the numbers depend on."""

    tasks: Annotated[
        tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="[TASK ...]")
    ] = ("noisy-digits", "digits")
    """Names with options (images:noise=0.3), or path/to/file.py:ClassName."""
    methods: tuple[str, ...] = DEFAULT_METHODS
    """Names with options, such as ema:decay=0.99, or ema@lr*0.5 for EMA at half of the
    learning rate; the first is the baseline."""
    optimizer: str | None = None
    """Name with options, such as adamw:lr=1e-3; None is the task's own."""
    seeds: int = 8
    """How many seeds each method is trained with, the same for all."""
    first_seed: int = 0
    """The first of them; the others follow."""
    epochs: int | None = None
    """Length of a training; None is the task's own, as for all that follows."""
    schedule: str | None = None
    """Schedule of the learning rate: constant, step, cosine or one-cycle."""
    warmup_epochs: float | None = None
    """Linear warm-up of the learning rate. The task's own keeps its share of the
    training where it would be longer than the given epochs."""
    clip: float | None = None
    """Largest norm of the gradients."""
    accumulate: int | None = None
    """Batches per optimizer step."""
    precision: str | None = None
    """Autocast: no, bf16 or fp16."""
    layer_decay: float | None = None
    """Factor of the learning rate per layer, counted from the output."""
    evaluate_every: int | None = dataclasses.field(default=None, metadata=LATER)
    """Epochs between two evaluations; the last epoch is always evaluated."""
    stack: str = dataclasses.field(default="off", metadata=LATER)
    """Train many seeds at once where that is faster (auto), learning rates that methods
    are compared at as well (all), or one by one (off)."""
    tune: int | str = 0
    """Choose for each task and method on a validation split, before the comparison and
    from the same candidates: lr, lr=0.01,0.1 (any option), or how many values of the
    method's main option."""
    sweep: str | None = dataclasses.field(default=None, metadata=LATER)
    """Compare at each value of an option of the optimizer, the methods or the tasks,
    such as lr=0.0125,0.05,0.2 or decay=0.9,0.99."""
    metric: str | None = dataclasses.field(default=None, metadata=LATER)
    """Of a script, the value that decides; None: the first that it reports."""
    lower_is_better: bool = dataclasses.field(default=False, metadata=LATER)
    """Say so where the name of a script's metric does not: losses and errors do."""
    higher_is_better: bool = dataclasses.field(default=False, metadata=LATER)
    """The opposite."""

    def __post_init__(self) -> None:
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
        if isinstance(self.tune, str) and self.tune != LEARNING_RATE:
            parse_variation(self.tune)
        if self.sweep is not None:
            parse_variation(self.sweep)
            if self.tune:
                raise UsageError("a comparison has a sweep or is tuned, not both.")
        self._check_script()
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
                raise UsageError(f"{text!a} is not text that can be written.")

    def _check_script(self) -> None:
        """Refuse what does not go with a command of the user's."""
        if self.lower_is_better and self.higher_is_better:
            raise UsageError("a metric is better lower or higher, not both.")
        scripts = [task for task in self.tasks if is_script(task)]
        if len(scripts) < len(self.tasks):
            if scripts:
                raise UsageError("a script is compared by itself, without tasks.")
            return
        for name in _OF_TASKS:
            if getattr(self, name) not in (None, 0):
                raise UsageError(
                    f"{name} does not go with a script, which trains as it says "
                    "itself; change the command."
                )
        for task in scripts:
            words = command_of(task)
            if not words or not any(SEED in word for word in words):
                raise UsageError(
                    f"the script {task.removeprefix(SCRIPT)!r} must say where the seed "
                    f"goes, as in python train.py --seed {SEED}."
                )

    def metrics_of_script(self, reported: Sequence[str]) -> tuple[Metric, ...]:
        """Return what a script has reported, what decides first."""
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
        """Replace the parts of a task's recipe that are given here."""
        names = {field.name for field in dataclasses.fields(Recipe)}
        given = {
            name: value
            for name, value in dataclasses.asdict(self).items()
            if name in names - {"methods"} and value is not None
        }
        if "warmup_epochs" not in given and recipe.warmup_epochs > self._epochs(recipe):
            share = recipe.warmup_epochs / recipe.epochs
            given["warmup_epochs"] = share * self._epochs(recipe)
        return dataclasses.replace(recipe, **given)

    def _epochs(self, recipe: Recipe) -> int:
        return recipe.epochs if self.epochs is None else self.epochs

    def to_json(self) -> str:
        """Spell the configuration so that equal configurations are equal texts."""
        return json.dumps(stored_fields(self), indent=2, sort_keys=True)

    @classmethod
    def from_json(cls, text: str, where: str = "the configuration") -> "CompareConfig":
        """Read what :meth:`to_json` wrote; unknown keys are refused."""
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
        """Name a run after its tasks and a fingerprint, so that it is found again.

        A task in a file that has been edited since is another task.
        """
        slug = task_slug(*self.tasks)
        text = self.to_json() + self.sources
        return f"{slug}-{hashlib.sha1(text.encode()).hexdigest()[:6]}"

    @property
    def sources(self) -> str:
        """Fingerprints of the files that tasks are taken from; of ours, none."""
        return " ".join(filter(None, map(fingerprint, self.tasks)))

    @property
    def inputs(self) -> str:
        """Fingerprints of other files that scripts are given, as JSON."""
        seeds = range(self.first_seed, self.first_seed + self.seeds)
        return json.dumps(inputs_of(self.tasks, seeds), sort_keys=True)


def _is_text(text: str) -> bool:
    """Whether a text can be encoded: JSON can hold halves of characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text


def _shown(value: Any) -> str:
    """Spell a value that may be huge or nested deeply."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):
        return f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= 200 else f"{text[:200]}..."


def _short(value: int) -> str:
    """Spell a number that may have thousands of digits."""
    return str(value) if value < 10**20 else "a number of more than 20 digits"


def _read(where: str, key: str, value: Any, hint: Any) -> Any:
    """Take a value from JSON if it is of the kind that the field holds."""
    if get_origin(hint) is tuple:
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise UsageError(
                f"{where}: {key} must be a list of texts, got {_shown(value)}."
            )
        return tuple(value)
    kinds = get_args(hint) or (hint,)
    accepted = (*kinds, int) if float in kinds else kinds
    if type(value) not in accepted:
        words = " or ".join(KINDS[kind] for kind in kinds)
        raise UsageError(f"{where}: {key} must be {words}, got {_shown(value)}.")
    return value
