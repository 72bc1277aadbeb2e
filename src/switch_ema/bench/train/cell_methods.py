"""The methods of a cell: what they change, and how they are attached to a training."""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

from torch import nn
from torch.optim import Optimizer

from switch_ema.averaging.averager import Averager
from switch_ema.bench.methods import (
    Method,
    as_teacher,
    changed_epochs,
    effective,
    method_of,
    of_optimizer,
    parse_method,
    surviving_share,
    with_share,
    with_share_as_alpha,
)
from switch_ema.bench.optimizers.overrides import change_optimizer
from switch_ema.bench.optimizers.rates import rate_factor, scale_steps
from switch_ema.bench.plan.cells import Cell
from switch_ema.bench.spec import SHARE, Change, parse_method_spec
from switch_ema.bench.task import SelfTeachingTask, Task
from switch_ema.bench.train import task_checks
from switch_ema.bench.train.selection import Selection


class CellMethods:
    """The methods of a cell.

    Args:
        cell: the cell as planned.
        task: its task.
        steps_per_epoch: optimizer steps, by which f is known.
    """

    cell: Cell
    """The cell with the number of epochs that its methods ask for."""
    share: float | None
    """The share f of an epoch's progress that a switch keeps, if a method uses it."""

    def __init__(self, cell: Cell, task: Task, steps_per_epoch: int) -> None:
        self._task, self._steps_per_epoch = task, steps_per_epoch
        self.share = None
        if cell.control_of:
            self.share = surviving_share(
                cell.control_of, cell.recipe.methods, steps_per_epoch
            )
        self.cell = self._with_share_of_epochs(cell)

    def _with_share_of_epochs(self, cell: Cell) -> Cell:
        """Apply ``epochs*f``; planning has applied other changes of the epochs."""
        changes = parse_method_spec(cell.methods[0]).changes
        by_share = [change for change in changes if change.value == SHARE]
        if self.share is None or by_share == of_optimizer(by_share):
            return cell
        known = with_share(by_share, self.share)
        return cell.lasting(changed_epochs(cell.recipe.epochs, known))

    def find(self, label: str) -> Method:
        """Return a method by its label, with the options that suit the task."""
        method = parse_method(label, self.cell.recipe.methods)
        if self.share is not None:
            method = with_share_as_alpha(method, self.share, self._steps_per_epoch)
        if not isinstance(self._task, SelfTeachingTask):
            return method
        steps = self.cell.recipe.epochs * self._steps_per_epoch
        final, memory = self._task.final_decay, self._task.memory
        return as_teacher(method, steps=steps, final_decay=final, exclude=memory)

    def change(self, optimizer: Optimizer) -> None:
        """Apply the methods' optimizer settings."""
        variants = self.cell.variants
        if len(variants) > 1:
            factors = [rate_factor(optimizer, changes) for changes in variants]
            each = [factor for factor in factors for _ in self.cell.seeds]
            scale_steps(optimizer, each)
            return
        changes: Iterable[Change] = parse_method_spec(self.cell.methods[0]).changes
        if self.share is not None:
            changes = with_share(changes, self.share)
        change_optimizer(optimizer, of_optimizer(changes))

    @property
    def write_weights(self) -> bool:
        """Whether a method may overwrite the weights during a step."""
        return not all(method_of(label).shares_training for label in self.cell.methods)

    def shown(self) -> dict[str, dict[str, slice]]:
        """Map each attached method to its labels and their networks in the stack.

        A method at several stacked learning rates is attached once.
        """
        variants, seeds = self.cell.variants, len(self.cell.seeds)
        shown: dict[str, dict[str, slice]] = {}
        first: dict[str, str] = {}
        for label in self.cell.methods:
            spec = method_of(label).spec
            start = seeds * variants.index(tuple(effective(spec.changes)))
            attached = first.setdefault(str(replace(spec, changes=())), label)
            shown.setdefault(attached, {})[label] = slice(start, start + seeds)
        return shown

    def attach(
        self, model: nn.Module, optimizer: Optimizer, folder: Path
    ) -> dict[str, Averager | None]:
        """Create the averagers, by label; methods may keep files in the folder."""
        return {
            label: self.find(label).make(
                model,
                optimizer,
                epochs=self.cell.recipe.scheduled_epochs,
                folder=folder / label.replace("/", "-").replace(":", "-"),
                probe=partial(task_checks.loss_and_error, self._task),
            )
            for label in self.shown()
        }

    def select(self, model: nn.Module) -> dict[str, Selection]:
        """Create the epoch selection of each ``+best`` method."""
        chosen = [label for label in self.shown() if self.find(label).keeps_best]
        if not chosen:
            return {}
        examples = task_checks.count_examples(self._task, model)
        metric = self._task.metrics[0]
        return {label: Selection(metric, examples) for label in chosen}
