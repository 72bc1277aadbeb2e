"""Weight averaging in the Trainer of Transformers: one callback, any method."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from switch_ema._extras import needed
from switch_ema._files import write_atomically
from switch_ema._random import random_numbers_kept
from switch_ema.averaging.averager import Averager
from switch_ema.averaging.best import Best
from switch_ema.averaging.registry import MethodOptions, create_averager
from switch_ema.integrations.best import BestBy
from switch_ema.integrations.measures import (
    LIVE,
    check_evaluate,
    describe_average,
    distance,
)
from switch_ema.integrations.options import check_method, spelled_out
from switch_ema.integrations.sharding import gathered, load_live
from switch_ema.integrations.wrapping import (
    check_alone,
    run_on_average,
    warn_without_state,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

with needed("transformers", extra="transformers"):
    from transformers import (
        Trainer,
        TrainerCallback,
        TrainerControl,
        TrainerState,
        TrainingArguments,
    )
    from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, get_last_checkpoint

FILE = "switch_ema.pt"
"""In each checkpoint folder: the averager and the live weights."""


class SwitchEMACallback(TrainerCallback):
    """Average the weights of the model that a Trainer trains.

    Real optimizer steps count, so gradient accumulation needs no care. Evaluation and
    prediction run on the averaged weights, and the live ones are put back afterwards,
    also after an exception. What the Trainer saves (checkpoints, ``save_model``, a
    push to the hub) is the averaged model, so that ``load_best_model_at_end`` and
    ``from_pretrained`` give it; the live weights stand beside it in ``switch_ema.pt``,
    from which ``resume_from_checkpoint`` goes on, bit for bit. After ``train`` the
    model holds the live weights, or with ``load_best_model_at_end`` the best averaged
    ones. Under FSDP2 each process averages its own shards, and one writes the whole.
    FSDP1 and DeepSpeed are not supported.

    Args:
        method: a name of ``switch_ema.METHODS``.
        best: keep the best average by a metric of the evaluations in ``train``, such as
            ``BestBy("eval_accuracy", higher_is_better=True, n=1000)``; afterwards
            evaluations and ``save_model`` use it where the last average is clearly
            worse, and ``callback.best`` has it.
        evaluate: which weights the evaluations in ``train`` measure: "averaged",
            "live", or "both", where the metrics of the live weights stand beside the
            usual ones as ``eval_loss_live``.
        log_averaging: log decay, number of switches, the share of the progress that a
            switch kept and the distance of the live weights to the average at the end
            of each epoch, through the Trainer's own loggers.
        options: the options of the method, such as ``decay`` and ``switch_every``.

    Example::

        trainer = Trainer(model, args, callbacks=[SwitchEMACallback(decay=0.999)])
    """

    @spelled_out
    def __init__(
        self,
        method: str = "switch-ema",
        *,
        best: BestBy | None = None,
        evaluate: Literal["averaged", "live", "both"] = "averaged",
        log_averaging: bool = False,
        **options: "Unpack[MethodOptions]",
    ) -> None:
        check_method(method, options)
        check_evaluate(evaluate, best)
        self.averager: Averager | None = None
        """Made when training begins."""
        self.best: Best | None = None
        """Made when training begins, if it was asked for."""
        self._best_by, self._trains = best, False
        self._method, self._options = method, options
        self._evaluate, self._log_averaging = evaluate, log_averaging
        self._trainer: Trainer | None = None
        self._resumed_from: Path | None = None
        self._first_epoch = 0
        self._shows_best = False

    # Around the trainer, whose events do not say when an evaluation fails.

    def attach(self, trainer: Trainer) -> None:
        """Add the callback to a trainer that exists already."""
        if self not in trainer.callback_handler.callbacks:
            trainer.add_callback(self)
        check_alone(self, trainer.callback_handler.callbacks, SwitchEMACallback)
        if self._trainer is trainer:
            return
        self._trainer = trainer
        run_on_average(trainer, "evaluation_loop", self._evaluated)
        self._add_live_metrics(trainer)
        run_on_average(trainer, "save_model", self._shown)
        if trainer.is_fsdp_enabled:
            # It also writes the model, which load_best_model_at_end then reads.
            run_on_average(trainer, "_save_optimizer_and_scheduler", self._shown)
        save, train = trainer.save_model, trainer.train

        def save_model(output_dir: str | None = None, *args: Any, **kw: Any) -> None:
            folder = Path(output_dir or trainer.args.output_dir or ".")
            if folder.name == f"{PREFIX_CHECKPOINT_DIR}-{trainer.state.global_step}":
                self._save(trainer.args, folder)
            save(output_dir, *args, **kw)

        def train_from(
            resume_from_checkpoint: Any = None, *args: Any, **kw: Any
        ) -> Any:
            self._resumed_from = _folder(trainer.args, resume_from_checkpoint)
            return train(resume_from_checkpoint, *args, **kw)

        trainer.save_model = save_model  # type: ignore[method-assign]
        trainer.train = train_from  # type: ignore[method-assign]

    def _add_live_metrics(self, trainer: Trainer) -> None:
        """Let an evaluation in ``train`` measure the live weights, too, if asked to.

        Without drawing random numbers, so that the training stays what it is.
        """
        averaged = trainer.evaluation_loop
        on_live = averaged.original  # type: ignore[attr-defined]

        def evaluation_loop(*args: Any, **kw: Any) -> Any:
            live: dict[str, float] = {}
            if self._evaluate == "both" and self._trains:
                with random_numbers_kept():
                    live = on_live(*args, **kw).metrics or {}
            found = averaged(*args, **kw)
            if live and found.metrics is not None:
                found.metrics.update({f"{k}{LIVE}": v for k, v in live.items()})
            return found

        # As run_on_average marks it: another callback takes its place.
        marks = {"wrapper": evaluation_loop, "original": on_live}
        vars(evaluation_loop).update(marks)
        trainer.evaluation_loop = evaluation_loop  # type: ignore[method-assign]

    def _evaluated(self) -> Averager | Best | None:
        return None if self._evaluate == "live" and self._trains else self._shown()

    def _save(self, args: TrainingArguments, folder: Path) -> None:
        """Put the averager and the live weights beside the averaged model.

        Before it, and thus before the file that makes a checkpoint complete: a run
        that is killed in between leaves none that would resume without the average.
        """
        assert self._trainer is not None
        takes_part = args.should_save or self._trainer.is_fsdp_enabled
        if self.averager is None or not takes_part:
            return
        saved = gathered(
            {
                "averager": self.averager.state_dict(),
                "live": self.averager.live_tensors(),
                "first_epoch": self._first_epoch,
            }
        )
        if self.best is not None:
            saved["best"] = gathered(self.best.state_dict())
        if not args.should_save:
            return
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / FILE, lambda file: torch.save(saved, file))

    def on_init_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Attach to the trainer that is just being made."""
        # No event names its trainer; it is the ``self`` of the constructor above us.
        frame = sys._getframe(1)
        while frame is not None:
            owner = frame.f_locals.get("self")
            if isinstance(owner, Trainer):
                self.attach(owner)
                return
            frame = frame.f_back  # type: ignore[assignment]

    def _shown(self) -> Averager | Best | None:
        if self._shows_best:
            return None
        return self.averager if self._trains or self.best is None else self.best

    # Training.

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        optimizer: Any = None,
        **kwargs: Any,
    ) -> None:
        """Make the averager, and on resuming load its state and the live weights."""
        if self._trainer is None:
            raise RuntimeError(
                "SwitchEMACallback does not know its trainer; give it to "
                "Trainer(callbacks=[...]), or call attach(trainer)."
            )
        if self.averager is not None:
            self.averager.detach()
        inner = getattr(optimizer, "optimizer", optimizer)  # inside Accelerate's
        wrapped = self._trainer.model_wrapped  # in DDP, whose buffers are shared
        self.averager = create_averager(self._method, wrapped, inner, **self._options)
        if self._best_by is not None:
            self.best = self._best_by.make(self.averager)
        self._shows_best, self._trains = False, True
        self._first_epoch = int(state.epoch or 0)
        file = self._resumed_from and self._resumed_from / FILE
        if file and file.exists():
            saved = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
            load_live(self.averager, saved["live"])
            self.averager.load_state_dict(saved["averager"])
            self._first_epoch = saved["first_epoch"]
            if self.best is not None and "best" in saved:
                self.best.load_state_dict(saved["best"])
        elif file:
            warn_without_state()

    def on_epoch_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """End the last epoch, where a checkpoint of its last step was resumed."""
        self._end_epochs(int(state.epoch or 0))

    def on_epoch_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """End the epoch, before the Trainer evaluates and saves."""
        assert self.averager is not None and self._trainer is not None
        moved = distance(self.averager) if self._log_averaging else 0.0
        self._end_epochs(self._first_epoch + self.averager.epochs + 1)
        if self._log_averaging:
            self._trainer.log(describe_average(self.averager, moved))

    def _end_epochs(self, finished: int) -> None:
        assert self.averager is not None
        while self._first_epoch + self.averager.epochs < finished:
            self.averager.end_epoch()

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Note the score of an evaluation in ``train``."""
        if self.best is not None and self._best_by is not None and self._trains:
            self.best.update(self._best_by.read(metrics or {}))

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Show the best averaged weights from now on, if they were just loaded."""
        loaded = args.load_best_model_at_end and state.best_model_checkpoint is not None
        self._shows_best, self._trains = bool(loaded), False


def _folder(args: TrainingArguments, resume: str | bool | None) -> Path | None:
    """Name the folder that ``train(resume_from_checkpoint=resume)`` will load."""
    found = resume
    if resume is True:
        found = get_last_checkpoint(args.output_dir)  # type: ignore[no-untyped-call]
    return Path(found) if isinstance(found, str) else None
