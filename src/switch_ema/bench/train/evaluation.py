"""Evaluates the methods of a training, and notes their values in its result."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import torch

from switch_ema.bench.optimizers.step import set_mode
from switch_ema.bench.recipe import rounded_metric
from switch_ema.bench.stacking.tasks import StackedTask
from switch_ema.bench.task import EVALUATION_PURPOSE, Task
from switch_ema.bench.train import task_checks
from switch_ema.bench.train.deploy import rounded
from switch_ema.bench.train.result import Clock, to_png
from switch_ema.bench.train.training_loss import has_training_loss, training_losses

if TYPE_CHECKING:
    from switch_ema.bench.train.loop import Training

_SAMPLES = 3 * 2**30
"""Purpose of the random numbers of sample images: see ``epoch_seed``."""

Measured = dict[str, list[float]]
"""Values by metric, one for each network of the stack."""


@torch.no_grad()
def evaluate(training: "Training", between: Callable[[], None]) -> None:
    """Evaluate every method; epochs without an evaluation get NaN.

    Args:
        training: after the steps of an epoch.
        between: called before each method.
    """
    if not training.cell.recipe.is_evaluated(training.epoch + 1):
        for label in training.averagers:
            _note(training, label, _not_measured(training))
        return
    clock, task, tested = Clock(), training.task, training.tested
    if isinstance(task, StackedTask) and isinstance(tested, StackedTask):
        tested.has_stopped = task.has_stopped
    training.fit_statistics()
    found, held_out = {}, {}
    for label in training.averagers:
        between()
        found[label] = _measure(training, tested, label)
        found[label] |= _measure_rounded(training, label)
        if label in training.selections:
            metric = training.selections[label].metric.name
            held_out[label] = _measure(training, task, label)[metric]
    # Noted all at once: an epoch has the values of all methods or of none.
    for label, measured in found.items():
        if label in held_out:
            measured = training.selections[label].add(held_out[label], measured)
        _note(training, label, measured)
    seconds, processor = clock.lap()
    training.result.evaluate_seconds += seconds
    training.result.processor_seconds += processor * training.context.workers


@contextmanager
def showing(training: "Training", label: str, purpose: int) -> Iterator[None]:
    """Put a method's average into the model, in evaluation mode.

    Mode and seed are reset for each method: a task may change the mode, and no method
    may depend on the random numbers that the previous one drew.
    """
    averager = training.averagers[label]
    set_mode(training.optimizer, training=False)
    training.model.eval()
    training.seed_epoch(purpose)
    with averager.averaged() if averager is not None else nullcontext():
        yield


def _measure(
    training: "Training", task: Task, label: str, rounding: str = ""
) -> Measured:
    """Evaluate a method's weights, rounded if a rounding is given."""
    changed = (
        rounded(training.model, rounding, stacked=training.is_stacked)
        if rounding
        else nullcontext()
    )
    with showing(training, label, EVALUATION_PURPOSE), changed:
        networks = len(training.cell.networks)
        return task_checks.measure(task, training.model, networks)


def _measure_rounded(training: "Training", label: str) -> Measured:
    """Evaluate a method's final weights after rounding; earlier epochs get NaN.

    A method with a selection may end up with the weights of any epoch.
    """
    names = rounded_metrics(training)
    is_last = training.epoch + 1 == training.cell.recipe.epochs
    if not is_last and label not in training.selections:
        nothing = [math.nan] * len(training.cell.networks)
        return dict.fromkeys(names.values(), nothing)
    metric = training.task.metrics[0].name
    return {
        name: _measure(training, training.tested, label, kind)[metric]
        for kind, name in names.items()
    }


def rounded_metrics(training: "Training") -> dict[str, str]:
    """Map each requested rounding to the name of its metric."""
    metric, kinds = training.task.metrics[0], training.cell.recipe.roundings
    return {kind: rounded_metric(metric, kind).name for kind in kinds}


def note_training_losses(training: "Training") -> None:
    """Measure the final weights of every method on training batches.

    Not of ``+best`` methods, which return the weights of an earlier epoch, nor of
    data-parallel trainings, in which the loss of a batch is that of a part.
    """
    if not has_training_loss(training.task) or training.context.workers > 1:
        return
    clock, result = Clock(), training.result
    for label in training.averagers:
        if label in training.selections:
            continue
        with showing(training, label, EVALUATION_PURPOSE):
            losses = training_losses(
                training.task, training.model, training.accelerator
            )
        for own, networks in training.shown[label].items():
            result.training_losses[own] = losses[networks]
    seconds, processor = clock.lap()
    result.evaluate_seconds += seconds
    result.processor_seconds += processor


@torch.no_grad()
def note_samples(training: "Training") -> None:
    """Collect the task's sample images for every method."""
    for label in training.averagers:
        with showing(training, label, _SAMPLES):
            pictures = task_checks.sample_pictures(training.tested, training.model)
        if pictures:
            training.result.samples[label] = to_png(pictures)


def note_diverged(training: "Training", why: str) -> None:
    """Fill the remaining epochs with NaN: the seed counts, but has no value."""
    result, metric = training.result, training.task.metrics[0].name
    result.status, result.message = "diverged", why
    for label in training.averagers:
        done = result.values.get(label, {}).get(metric, [])
        for _ in range(training.cell.recipe.epochs - len(done)):
            _note(training, label, _not_measured(training))


def _not_measured(training: "Training") -> Measured:
    nothing = [math.nan] * len(training.cell.networks)
    names = [metric.name for metric in training.task.metrics]
    return dict.fromkeys([*names, *rounded_metrics(training).values()], nothing)


def _note(training: "Training", label: str, measured: Measured) -> None:
    for own, networks in training.shown[label].items():
        method = training.result.values.setdefault(own, {})
        for metric, values in measured.items():
            method.setdefault(metric, []).append(values[networks])
