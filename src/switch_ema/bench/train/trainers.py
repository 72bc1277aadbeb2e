"""Trials in trainers that own the training loop: Lightning and Transformers.

A script with such a trainer has no optimizer and no epoch loop of its own. So
``switch_ema.trial(trainer)`` adds a callback, and measures when the trainer evaluates.
"""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from switch_ema._random import random_numbers_kept

if TYPE_CHECKING:
    from switch_ema.bench.train.trial import Trial

Begin = Callable[[Any, Any, int | None], "Trial"]
"""Starts a trial from a model, its optimizers and the number of epochs."""

_SECONDS = ("_runtime", "_time", "_per_second")
"""Name suffixes of the timings that Transformers reports with the metrics."""


def follow_trainer(trainer: Any, begin: Begin) -> None:
    """Attach callbacks that start a trial with the training and end its epochs.

    Raises:
        TypeError: not a supported trainer.
    """
    # Looked up, not imported: a trainer exists only if its library was imported.
    lightning = sys.modules.get("lightning.pytorch")
    transformers = sys.modules.get("transformers")
    if lightning is not None and isinstance(trainer, lightning.Trainer):
        _follow_lightning(trainer, begin)
    elif transformers is not None and isinstance(trainer, transformers.Trainer):
        _follow_transformers(trainer, begin)
    else:
        raise TypeError(
            "switch_ema.trial needs a model and its optimizer, or a Trainer of "
            f"lightning.pytorch or transformers, got {type(trainer).__name__}."
        )


def _follow_lightning(trainer: Any, begin: Begin) -> None:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.trainer.states import TrainerFn

    from switch_ema.integrations.lightning_validation import validate_again

    class TrialCallback(Callback):
        trial: "Trial | None" = None
        ended = 0

        def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
            epochs = trainer.max_epochs
            is_known = epochs is not None and epochs > 0
            model = trainer.model or pl_module  # wrapped in DDP
            self.trial = begin(model, trainer.optimizers, epochs if is_known else None)
            self.ended = trainer.current_epoch

        def on_train_batch_end(
            self,
            trainer: Trainer,
            pl_module: LightningModule,
            outputs: Any,
            batch: Any,
            batch_idx: int,
        ) -> None:
            # Not in on_train_epoch_end, which runs after the epoch's validation.
            if trainer.is_last_batch:
                self._end_epoch(trainer)

        def on_train_epoch_end(
            self, trainer: Trainer, pl_module: LightningModule
        ) -> None:
            self._end_epoch(trainer)

        def _end_epoch(self, trainer: Trainer) -> None:
            if self.trial is not None and self.ended == trainer.current_epoch:
                self.trial.end_epoch()
                self.ended += 1

        def on_validation_start(
            self, trainer: Trainer, pl_module: LightningModule
        ) -> None:
            if self.trial is None or trainer.state.fn != TrainerFn.FITTING:
                return

            def measure() -> dict[str, float]:
                found = validate_again(trainer, pl_module)
                reduce = trainer.strategy.reduce
                return {
                    name: float(reduce(torch.tensor(value, device=pl_module.device)))
                    for name, value in found.items()
                }

            # The trainer validates next, and must see the same random numbers.
            with random_numbers_kept():
                self.trial.evaluate(measure)

    trainer.callbacks.append(TrialCallback())


def _follow_transformers(trainer: Any, begin: Begin) -> None:
    from transformers import TrainerCallback

    trials: list[Trial] = []

    class TrialCallback(TrainerCallback):
        def on_train_begin(
            self, args: Any, state: Any, control: Any, **rest: Any
        ) -> None:
            optimizer = rest["optimizer"]
            # Accelerate wraps the optimizer.
            inner = getattr(optimizer, "optimizer", optimizer)
            trials.append(begin(trainer.model_wrapped, inner, state.num_train_epochs))

        def on_epoch_end(
            self, args: Any, state: Any, control: Any, **rest: Any
        ) -> None:
            trials[-1].end_epoch()

    evaluation_loop = trainer.evaluation_loop

    def measured(*args: Any, metric_key_prefix: str = "eval", **options: Any) -> Any:
        """Evaluate every method; the trainer gets the output of the first."""
        outputs: list[Any] = []

        def measure() -> dict[str, float]:
            outputs.append(
                evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **options)
            )
            found = outputs[-1].metrics.items()
            return {name: value for name, value in found if not name.endswith(_SECONDS)}

        # predict() has a different prefix, and before training there is no trial.
        if trials and metric_key_prefix == "eval":
            trials[-1].evaluate(measure)
        else:
            measure()
        return outputs[0]

    trainer.add_callback(TrialCallback())
    trainer.evaluation_loop = measured
