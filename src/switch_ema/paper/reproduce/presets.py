"""Builds the comparison of a row, at the small or the paper's scale."""

from dataclasses import dataclass, fields
from typing import Any, Literal

from switch_ema.bench.errors import UsageError
from switch_ema.bench.method_names import base_name
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.recipe import StepOptions
from switch_ema.bench.spec import READERS, Spec, parse_method_spec, parse_options
from switch_ema.paper.tables.table import EPOCHS, PaperRow, RowSetting, TeacherDecays
from switch_ema.zoo.decays import Decays

SCALES = ("small", "paper")
_WEIGHTS = "weights"
"""Option of tasks that start from pre-trained weights at the paper's scale."""
_CONSTANT = {"warmup": "none"}
_SWA_BUDGET = 1.25
"""SWA's epochs, relative to those of the other methods."""


@dataclass(frozen=True, kw_only=True)
class RowSettings(StepOptions):
    """Training settings; together with the row, they determine the numbers."""

    scale: Literal["small", "paper"] = "small"
    """Small networks on small data, or the paper's networks, data and epochs."""
    seeds: int | None = None
    """Seeds per method; None: 3, or 5 or 16 in rows of Tables 2 and 3 at the small
    scale."""
    epochs: int | None = None
    """Epochs per training; None: the scale's default."""
    methods: tuple[str, ...] = ()
    """Methods instead of the row's, its baseline among them, such as plain ema
    switch-ema ema@lr*f; those that the row has take its decays."""
    dataset: str | None = None
    """Dataset at the small scale, such as cifar10; None: the row's own."""
    set: str | None = None
    """Options of the rows' tasks, such as workers=16,weights=FILE; they replace the
    rows' own. A row can go on with other workers, not with other values of the rest."""
    from_scratch: bool = False
    """Train from random weights where the paper fine-tunes pre-trained ones."""
    equal_budget: bool = False
    """Give SAM, with two passes per step, half the epochs, and SWA no more epochs."""
    teachers: Literal["method", "table", "half"] = "method"
    """Decays of the averages that teach in MoCo and BYOL, at the paper's scale: the
    method's own rising ones, the constants of Table A1, or one with which a switch
    keeps half of an epoch's progress. With 12 steps per epoch, as in BYOL on CIFAR-100,
    decays of 0.99 and 0.999 keep 6% and 0.6%."""
    until_decided: bool = False
    """Add seeds in rounds of 4 until every verdict is settled (see settle), with
    intervals that are valid at every look."""
    max_seeds: int = CompareConfig.max_seeds
    """With until_decided: number of seeds at which undecided rows stop."""
    settle: Literal["every", "switch-ema"] = "every"
    """With until_decided: wait for every verdict, or only for that on Switch EMA
    against EMA."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scale not in SCALES:
            raise UsageError(
                f"scale must be {' or '.join(SCALES)}, got {self.scale!r}."
            )
        if self.from_scratch and self.scale == "small":
            raise UsageError(
                "from_scratch needs the paper's scale: small rows always train from "
                "scratch."
            )
        if self.scale == "paper" and self.dataset is not None:
            raise UsageError(
                "dataset needs the small scale, since the paper's rows fix their data; "
                f"got {self.dataset!r}."
            )

    @property
    def task_options(self) -> dict[str, Any]:
        """The options of ``set``."""
        return parse_options(self.set or "", "--set")

    @property
    def readers(self) -> Any:
        """Processes that read the data, as ``set`` gives them; None if it does not."""
        return self.task_options.get(READERS)


def row_config(row: PaperRow, settings: RowSettings) -> CompareConfig:
    """Return the comparison of all methods of a row, its baseline first.

    At the paper's scale it uses the paper's network, data, epochs, optimizer and
    decays. At the small scale it uses a small version of the network and the task's
    defaults.
    """
    setting = row.setting(settings.scale)
    epochs = settings.epochs or setting.epochs
    options = {
        key: epochs if value == EPOCHS else value
        for key, value in setting.options.items()
    }
    if settings.dataset is not None or setting.datasets:
        options["dataset"] = settings.dataset or _first_found(setting.datasets)
    if settings.from_scratch and _WEIGHTS in options:
        options[_WEIGHTS] = "none"
    given = settings.task_options
    given.pop(READERS, None)  # not part of the row: no result depends on it
    steps = {one.name: getattr(settings, one.name) for one in fields(StepOptions)}
    if settings.scale == "paper" and settings.precision is None:
        steps["precision"] = "auto"
    if settings.evaluate_every is None:
        steps["evaluate_every"] = setting.evaluate_every
    return CompareConfig(
        **steps,
        tasks=tuple(
            str(Spec(setting.task, {**options, **own, **given}))
            for own in setting.variants.values() or ({},)
        ),
        methods=tuple(
            _with_options(m, row, setting, settings.teachers)
            for m in _methods(row, settings)
        ),
        optimizer=setting.optimizer,
        seeds=seeds_of(row, settings),
        first_seed=setting.first_seed,
        epochs=epochs,
        stack=setting.stack,
        deploy=setting.deploy,
        equal_budget=settings.equal_budget,
        until_decided=settings.until_decided,
        max_seeds=settings.max_seeds,
        settle=settings.settle,
    )


def _methods(row: PaperRow, settings: RowSettings) -> tuple[str, ...]:
    """Return the methods as given, or the row's; its baseline comes first."""
    if not settings.methods:
        return row.methods_at(settings.scale)
    if row.baseline not in settings.methods:
        raise UsageError(
            f"methods must include {row.baseline}, the baseline of {row.name}, got "
            f"{', '.join(settings.methods)}."
        )
    return tuple(dict.fromkeys((row.baseline, *settings.methods)))


def seeds_of(row: PaperRow, settings: RowSettings) -> int:
    """Return the number of seeds of a row."""
    own = row.setting(settings.scale).seeds
    return own if settings.seeds is None else settings.seeds


def _teacher_decays(teacher: TeacherDecays, kind: str) -> Decays:
    if kind == "table":
        return teacher.decays
    # Imports torch, which listing tables must not need.
    from switch_ema.averaging.schedules.auto import decay_for_share

    half = round(decay_for_share(0.5, teacher.steps), 5)
    return Decays(half, half)


def _first_found(datasets: tuple[str, ...]) -> str:
    """Choose the first dataset found; the last one ships with a library."""
    # Data loaders import torch, which listing tables must not need.
    from switch_ema.zoo.data.sources import find_files

    here = (name for name in datasets[:-1] if find_files(name) is not None)
    return next(here, datasets[-1])


def _with_options(
    method: str, row: PaperRow, setting: RowSetting, teachers: str
) -> str:
    """Add decays, and SWA's budget where the paper has values of SWA.

    Options that a method has already are kept.
    """
    spec = parse_method_spec(method)
    decays, constant = setting.decays, {}
    if setting.teacher is not None and teachers != "method":
        decays, constant = _teacher_decays(setting.teacher, teachers), _CONSTANT
    known = {} if decays is None else decays.options()
    given: dict[str, Any] = {**known.get(base_name(spec.name), {})}
    given |= constant if given else {}
    if spec.name == "swa" and row.metrics[0].value(method) is not None:
        given = {"budget": _SWA_BUDGET}
    return str(spec.with_defaults(given)) if given else method
