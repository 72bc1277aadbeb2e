"""The training loop, shared by every task, method, optimizer and device."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import send_to_device, set_seed
from torch import Tensor, nn

from switch_ema.bench.broken_files import LEFT_OUT
from switch_ema.bench.loaders import feed, is_placed
from switch_ema.bench.loading import check_unchanged, create_task, with_readers
from switch_ema.bench.method_names import CONTROL
from switch_ema.bench.optimizers.schedules import create_schedule
from switch_ema.bench.optimizers.step import set_mode, take_step
from switch_ema.bench.plan.cells import Cell
from switch_ema.bench.spec import parse_method_spec, task_slug
from switch_ema.bench.stacking.modules import clip_each_
from switch_ema.bench.stacking.tasks import StackedTask
from switch_ema.bench.task import (
    CONTROL_EPOCHS,
    CONTROL_PURPOSE,
    JointLossTask,
    Loader,
    SeedBatchTask,
    SelfTeachingTask,
    Task,
    epoch_seed,
)
from switch_ema.bench.train import task_checks
from switch_ema.bench.train.cell_methods import CellMethods
from switch_ema.bench.train.checkpoints import (
    Unreadable,
    load_checkpoint,
    save_checkpoint,
    values_path,
)
from switch_ema.bench.train.context import (
    RunContext,
    check_kernels,
    using_threads,
)
from switch_ema.bench.train.description import (
    batch_size,
    describe_batches,
    describe_model,
    describe_optimizer,
    describe_schedule,
)
from switch_ema.bench.train.evaluation import (
    evaluate,
    note_diverged,
    note_samples,
    note_training_losses,
    rounded_metrics,
)
from switch_ema.bench.train.idle import why_idle
from switch_ema.bench.train.joint_loss import back_propagate_jointly
from switch_ema.bench.train.memory import state_mb
from switch_ema.bench.train.position import EpochPosition, remaining_batches
from switch_ema.bench.train.precision import (
    check_same_precision,
    describe_precision,
    resolved_precision,
    store_channels_last,
    to_channels_last,
    using_tf32,
)
from switch_ema.bench.train.result import CellResult, Clock
from switch_ema.bench.train.signals import HeldSignals
from switch_ema.bench.train.starts import Starts, batch_digests, weight_digests
from switch_ema.bench.train.statistics import recompute_statistics
from switch_ema.bench.train.step_log import StepLog, steps_path
from switch_ema.bench.train.trajectory import save_point
from switch_ema.bench.train.values import OnProgress, ValueLog, latest_of
from switch_ema.bench.train.weights import save_weights

_TRAINING = 0
"""Purpose of an epoch's random numbers: see ``epoch_seed``."""


class Training:
    """Trains one cell to its last epoch, from its checkpoint if it has one."""

    def __init__(self, cell: Cell, context: RunContext) -> None:
        self._planned, self.context = cell, context
        if context.sources is not None:
            check_unchanged(cell.task, context.sources)
        check_kernels(context.kernels)
        self._begin()

    def _begin(self) -> None:
        """Build the initial state."""
        self.cell = cell = self._planned
        context, recipe = self.context, cell.recipe
        # Seeded, so a task that draws its data here draws the same for every method.
        set_seed(cell.seeds[0])
        self.task = self._make_task(cell.trained_split)
        task_checks.check_seed(self.task)
        self.task.broken.most = context.skip_broken
        self.tested = self.task
        """Reports the values: the training task itself, unless data is held out."""
        if cell.evaluated_split != cell.trained_split:
            set_seed(cell.seeds[0])
            self.tested = self._make_task(cell.evaluated_split)
            self.tested.broken = self.task.broken
        # Otherwise Accelerate keeps the precision of the process's first cell.
        AcceleratorState._reset_state()
        self.accelerator = self._accelerate()
        set_seed(self.task.seed)
        model = self._make_model()
        if recipe.channels_last:  # before the optimizer and the averagers copy weights
            store_channels_last(model)
        origin = task_checks.load_initial_weights(self.task, model)
        starts = Starts(weights=self._digest(model))
        self.optimizer = task_checks.make_optimizer(
            self.task, model, cell.optimizer, recipe.layer_decay
        )
        batches = len(self._make_loader(0))
        self.steps_per_epoch = math.ceil(batches / recipe.accumulate)
        self.methods = CellMethods(cell, self.task, self.steps_per_epoch)
        self.cell = cell = self.methods.cell
        recipe = cell.recipe
        self.methods.change(self.optimizer)
        # Described here: the schedule changes the learning rate when it is created.
        trained = self._describe(model)
        self.schedule = create_schedule(
            recipe.schedule,
            self.optimizer,
            total_steps=recipe.scheduled_epochs * self.steps_per_epoch,
            warmup_steps=round(recipe.warmup_epochs * self.steps_per_epoch),
            has_tail=recipe.extra_epochs > 0,
        )
        if isinstance(self.task, StackedTask) and self.methods.write_weights:
            # Step hooks run in order of registration, so this precedes the averagers.
            self.task.watch_weights(model, self.optimizer)
        self.shown = self.methods.shown()
        folder = context.folder / "cells" / cell.id
        self.averagers = self.methods.attach(model, self.optimizer, folder)
        self.selections = self.methods.select(model)
        if isinstance(self.task, SelfTeachingTask):
            (teacher,) = self.averagers.values()
            self.task.teach(teacher)
        self.model = self._prepare(model)
        if recipe.compile:
            self.model.compile()  # in place: the same object with the same names
        # In float16, Accelerate's wrapper scales the loss and skips steps that
        # overflow; otherwise it only adds a fifth to a small network's step time.
        scales = self.accelerator.scaler is not None
        prepared = self.accelerator.prepare_optimizer(self.optimizer)
        self.stepper = prepared if scales else self.optimizer
        self.result = CellResult(
            origin=origin, trained=trained, share=self.methods.share, starts=starts
        )
        for label in cell.methods:
            method = self.methods.find(label)
            self.result.options[label] = method.describe(recipe.scheduled_epochs)
        self.log = ValueLog(values_path(context.folder, cell))
        self.step_log = StepLog(
            steps_path(context.folder, cell), self.accelerator.device
        )
        self.epoch = 0
        self.position = EpochPosition()
        self._signals = HeldSignals()
        self._saved_at = time.monotonic()

    def _describe(self, model: nn.Module) -> dict[str, str]:
        """Describe what is trained, and check the precision of a resumed run."""
        cell, recipe = self.cell, self.cell.recipe
        factors = " times each method's factor" if len(cell.variants) > 1 else ""
        trained = {
            "Network": describe_model(model, len(cell.networks)),
            "Optimizer": f"{describe_optimizer(self.optimizer)}{factors}",
            "Learning rate": describe_schedule(recipe),
        }
        if computed := describe_precision(recipe, self.accelerator.mixed_precision):
            trained["Precision"] = computed
        if recipe.precision == "auto":
            check_same_precision(computed, self.context.precision)
        if self.accelerator.device.type == "cuda":
            trained["Device"] = torch.cuda.get_device_name(self.accelerator.device)
        return trained

    def _make_task(self, split: str) -> Task:
        spec = with_readers(self.cell.task, self.context.readers)
        return create_task(spec, self.cell.networks, split=split)

    def _accelerate(self, **more: Any) -> Accelerator:
        context = self.context
        return Accelerator(
            **{"cpu": context.device == "cpu", **more},
            mixed_precision=resolved_precision(
                self.cell.recipe.precision, context.device
            ),
            log_with=list(context.trackers) or None,
            project_dir=str(context.folder / "trackers"),
        )

    def _make_model(self) -> nn.Module:
        return task_checks.make_model(self.task)

    def _make_loader(self, epoch: int) -> Loader:
        return task_checks.make_loader(self.task, epoch)

    def _prepare(self, model: nn.Module) -> nn.Module:
        """Move the model to its device and set its precision."""
        prepared: nn.Module = self.accelerator.prepare_model(model)
        return prepared

    def run(self, progress: OnProgress = lambda epoch, latest: None) -> CellResult:
        """Train to the end; checkpoints make it resumable.

        Raises:
            KeyboardInterrupt: SIGTERM arrived; the state is saved.
        """
        with using_tf32(self.cell.recipe.tf32), self._signals:
            return self._run(progress)

    def _run(self, progress: OnProgress) -> CellResult:
        try:
            self._resume()
            restarted = ""
        except Unreadable:  # parts of it may have been loaded already
            self._begin()
            restarted = "its checkpoint was damaged, so training started over"
        if self.context.measures_trivial:
            set_seed(self.task.seed)
            self.result.trivial = task_checks.trivial_values(self.tested)
        self._start_trackers()
        if not self.position.batches:
            self._keep_point()
        self._saved_at = time.monotonic()
        while self.epoch < self.cell.recipe.epochs and self.result.status == "done":
            try:
                if not (self._is_within_epoch and self.position.is_trained):
                    self._train_epoch()
                self._save_within_epoch(None)
                self._evaluate()
            except FloatingPointError as error:
                note_diverged(self, str(error))
            self.epoch += 1
            self._finish_epoch(progress)
        self._end_trackers()
        if self.result.status == "done":
            seeds = self.cell.seeds
            missing = task_checks.name_missing(self.result.values, seeds)
            self.result.message = "; ".join(filter(None, (restarted, missing)))
            self.result.starts.end = self._digest(self.model)
            self._note_idle()
            note_training_losses(self)
            if self.context.makes_samples:
                note_samples(self)
        if left_out := self.task.broken.describe():
            self.result.trained[LEFT_OUT] = left_out
        state = state_mb(self.model, [self.optimizer], self.averagers.values())
        self.result.memory_mb = state / len(self.cell.seeds)
        return self.result

    @property
    def is_stacked(self) -> bool:
        """Whether the cell trains several seeds as one model."""
        return isinstance(self.task, SeedBatchTask)

    def _digest(self, model: nn.Module) -> list[str]:
        return weight_digests(model, len(self.cell.seeds), stacked=self.is_stacked)

    def _note_idle(self) -> None:
        """Record the methods that did not act."""
        for attached, averager in self.averagers.items():
            length = self.cell.recipe.scheduled_epochs
            why = why_idle(self.methods.find(attached), averager, length)
            if why:
                self.result.idle |= dict.fromkeys(self.shown[attached], why)

    def _resume(self) -> None:
        """Load the checkpoint, if there is one."""
        load_checkpoint(self)

    def _finish_epoch(self, progress: OnProgress) -> None:
        """Log, checkpoint and report a finished epoch."""
        self._log()
        self._keep_point()
        self._keep_weights()  # before the checkpoint, after which an epoch is over
        self._save_if_due()
        first = self.result.values[self.cell.methods[0]]
        progress(self.epoch, latest_of(first))

    def _save_if_due(self) -> None:
        """Save a checkpoint if due; a killed run repeats the epochs since the last."""
        is_last = self.epoch == self.cell.recipe.epochs or self.result.status != "done"
        now = time.monotonic()
        if is_last or now - self._saved_at >= self.context.saves_every:
            save_checkpoint(self)
            self._saved_at = now

    @property
    def _is_within_epoch(self) -> bool:
        """Whether the position is one of the current epoch, and not at its start."""
        position = self.position
        return position.epoch == self.epoch and position.batches > 0

    def _save_within_epoch(self, loader: Loader | None) -> None:
        """After a step, save a checkpoint if one is due or a signal arrived.

        Args:
            loader: the batches of the epoch; None once it is trained.
        """
        waited = time.monotonic() - self._saved_at
        if waited >= self.context.checkpoint_every or self._signals.are_waiting:
            self._save_position(loader)
            self._saved_at = time.monotonic()
        self._signals.deliver()

    def _save_position(self, loader: Loader | None) -> None:
        self._count_training()
        device = self.accelerator.device
        save_checkpoint(self, self.position.state(loader, device))
        self._clock = Clock()

    def seed_epoch(self, purpose: int) -> None:
        """Seed the random numbers of this epoch for one purpose."""
        set_seed(epoch_seed(self.task.seed, self.epoch, purpose))

    def _train_epoch(self) -> None:
        self._clock = Clock()
        names = [parse_method_spec(label).name for label in self.cell.methods]
        is_control = CONTROL in names
        self.seed_epoch(CONTROL_PURPOSE if is_control else _TRAINING)
        self.model.train()
        set_mode(self.optimizer, training=True)
        # Offset epoch numbers give the control a different order of the data.
        epoch = self.epoch + (CONTROL_EPOCHS if is_control else 0)
        loader = self._make_loader(epoch)
        if not self._is_within_epoch:
            self.position = EpochPosition(self.epoch)
        position = self.position
        total = torch.zeros((), device=self.accelerator.device)
        if position.loss is not None:
            total += position.loss.to(total.device)
        before = 0.0 if position.loss is None else position.loss.item()
        self.step_log.begin_epoch(before, self._steps_until(position.batches))
        held: list[Any] = []
        first = position.batches + 1
        for index, batch in enumerate(self._feed(loader), start=first):
            if index == 1:
                self._look_at(batch, is_control=is_control)
            held.append(batch)
            if len(held) == self.cell.recipe.accumulate or index == len(loader):
                gradients = partial(self._gradients, held)
                # The averagers update inside the step, through its post hook.
                total += take_step(self.stepper, self.model, gradients)
                if self.step_log.add(sum(map(self._count_examples, held))):
                    self._log_steps(total, index)
                self.schedule.step()
                held = []
                position.batches, position.loss = index, total
                if index < len(loader):
                    self._save_within_epoch(loader)
        # Before the epoch ends for the averagers: a switch refuses an average that is
        # not finite, and one diverged seed would stop the whole stack.
        if isinstance(self.task, StackedTask):
            self.task.note_unusable(self.model)
            self._clear_stopped(self.task)
        for averager in self.averagers.values():
            if averager is not None:
                averager.end_epoch()
        # One check per epoch: a check per step would wait for the GPU each time.
        self._log_steps(total, position.batches)
        total = self._of_all(total)
        self._count_training()
        if not bool(torch.isfinite(total)):
            raise FloatingPointError("the training loss is not finite")
        position.is_trained = True

    def _steps_until(self, batches: int) -> int:
        """Count the optimizer steps of the training up to a batch of this epoch."""
        steps = math.ceil(batches / self.cell.recipe.accumulate)
        return self.epoch * self.steps_per_epoch + steps

    def _count_examples(self, batch: Any) -> int:
        """Count the examples of a batch, over all workers; 0 if unknown."""
        return batch_size(batch, dimension=1 if self.is_stacked else 0) or 0

    def _log_steps(self, total: Tensor, batches: int) -> None:
        self.step_log.write(
            total,
            epoch=self.epoch + 1,
            step=self._steps_until(batches),
            optimizer=self.optimizer,
            averagers=self.averagers,
        )

    def _feed(self, loader: Loader) -> Iterator[Any]:
        """Yield the rest of an epoch's batches on the training's device."""
        self._whole = loader.examples(0) if is_placed(loader) else None
        draw = partial(feed, loader, self.accelerator.device)
        return self._remaining(loader, draw)

    def _remaining(
        self, loader: Loader, draw: Callable[..., Iterator[Any]]
    ) -> Iterator[Any]:
        device = self.accelerator.device
        return remaining_batches(loader, self.position, device, draw)

    def _count_training(self) -> None:
        """Add the time since the last count to that of the training."""
        if not self.position.is_trained:
            seconds, processor = self._clock.lap()
            self.result.train_seconds += seconds
            self.result.processor_seconds += processor * self.context.workers

    def _gradients(self, batches: list[Any]) -> Tensor:
        """Back-propagate the micro-batches of one step, then clip."""
        if isinstance(self.task, JointLossTask) and len(batches) > 1:
            total = self._back_propagate_jointly(self.task, batches)
        else:
            total = torch.zeros((), device=self.accelerator.device)
            for left, batch in zip(reversed(range(len(batches))), batches, strict=True):
                total += self._back_propagate(batch, len(batches), is_last=left == 0)
        clip = self.cell.recipe.clip
        if isinstance(self.task, StackedTask):
            self._clear_stopped(self.task)
            if clip is not None:
                clip_each_(self.model.parameters(), clip)
        elif clip is not None:
            self.accelerator.clip_grad_norm_(self.model.parameters(), clip)
        return total

    def _back_propagate(self, batch: Any, batches: int, *, is_last: bool) -> Tensor:
        """Add the gradient of one micro-batch of the step.

        Args:
            batch: a batch from the task's loader, on the training's device.
            batches: micro-batches in this step; the loss is divided by it.
            is_last: whether it is the last one before the step.

        Returns:
            Its share of the step's loss, detached.
        """
        batch = self._on_device(batch)
        with self.accelerator.autocast():
            loss = task_checks.loss_of(self.task, self.model, batch) / batches
        self.accelerator.backward(loss)
        return loss.detach()

    def _back_propagate_jointly(self, task: JointLossTask, held: list[Any]) -> Tensor:
        """Add the gradient of a loss over all micro-batches of the step."""
        return back_propagate_jointly(
            task,
            self.model,
            list(map(self._on_device, held)),
            accelerator=self.accelerator,
            embed=partial(task.embed, self.model),
            synchronising=lambda is_last: nullcontext(),
        )

    def _on_device(self, batch: Any) -> Any:
        moved = send_to_device(batch, self.accelerator.device)
        return to_channels_last(moved) if self.cell.recipe.channels_last else moved

    def _look_at(self, batch: Any, *, is_control: bool) -> None:
        """Record the batch size and, once, a digest, from the first batch of an epoch.

        The control has an order of its own.
        """
        self.result.trained["Batch"] = describe_batches(
            batch,
            self.steps_per_epoch,
            self.cell.recipe.accumulate,
            stacked=self.is_stacked,
            size=self._whole,
        )
        if self.epoch == 0 and not is_control:
            self.result.starts.batch = batch_digests(
                batch, len(self.cell.seeds), stacked=self.is_stacked
            )

    def _of_all(self, total: Tensor) -> Tensor:
        """Sum the epoch's loss over all workers; here there is only one."""
        return total

    def _clear_stopped(self, task: StackedTask) -> None:
        """Zero the seeds that have diverged, which would spread NaN to the stack."""
        if task.has_stopped.any():
            averagers = self.averagers.values()
            task.clear_stopped(self.model, self.optimizer, averagers)
        if task.has_stopped.all():
            raise FloatingPointError("the training loss is not finite")

    def _evaluate(self) -> None:
        """Evaluate every method; epochs without an evaluation get NaN."""
        evaluate(self, between=partial(self._save_within_epoch, None))

    def fit_statistics(self) -> None:
        """Recompute the batch-norm statistics of averages with a budget, as SWA does.

        Their weights are far apart, so the mean of their statistics does not fit.
        """
        for label, averager in self.averagers.items():
            has_budget = self.methods.find(label).budget is not None
            if has_budget and averager is not None and averager.has_average:
                recompute_statistics(
                    self.task,
                    averager,
                    epoch=self.epoch,
                    device=self.accelerator.device,
                )

    def _keep_point(self) -> None:
        if self.context.keeps_trajectory:
            save_point(self)

    def _keep_weights(self) -> None:
        keep, recipe = self.context.keep, self.cell.recipe
        if keep == "none" or self.result.status != "done":
            return
        if self.epoch == recipe.epochs:
            save_weights(self)
        elif keep == "all" and recipe.is_evaluated(self.epoch):
            save_weights(self, self.epoch)

    def _start_trackers(self) -> None:
        if self.context.trackers:
            # `switch-ema judge` reads task and seed from this name.
            seed = f"seed-{self.cell.seeds[0]}"
            self.accelerator.init_trackers(
                f"{task_slug(self.cell.task)}-{seed}-{self.cell.id}"
            )

    def _end_trackers(self) -> None:
        self.accelerator.end_training()

    def _log(self) -> None:
        if not self.context.trackers:
            return
        logged = self.step_log.for_trackers
        is_last = self.epoch == self.cell.recipe.epochs
        unmeasured = () if is_last else rounded_metrics(self).values()
        if self.cell.recipe.is_evaluated(self.epoch):
            logged |= {
                f"{label}/{metric}": epochs[self.epoch - 1][0]
                for label, metrics in self.result.values.items()
                for metric, epochs in metrics.items()
                if metric not in unmeasured
            }
        self.accelerator.log(logged, step=self.epoch)


def train_cell(
    cell: Cell, context: RunContext, progress: OnProgress = lambda epoch, latest: None
) -> CellResult:
    """Train one cell, with the run's number of threads."""
    with using_threads(context.threads):
        return Training(cell, context).run(progress)
