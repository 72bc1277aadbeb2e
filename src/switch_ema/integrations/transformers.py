"""Weight averaging in the Trainer of Transformers: one callback, any method."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from switch_ema._extras import needed
from switch_ema._files import write_atomically
from switch_ema.averaging.averager import Averager
from switch_ema.averaging.best import Best
from switch_ema.integrations.averages import (
    Averages,
    AveragingSettings,
    CallbackOptions,
    HasAverages,
    takes_callback_options,
)
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


class SwitchEMACallback(HasAverages, TrainerCallback):
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

    As in the callbacks of all trainers, ``options`` may have, beside those of the
    method:

    - ``best``: keep the best average by a metric of the evaluations in ``train``, such
      as ``BestBy("eval_accuracy", higher_is_better=True, n=1000)``; afterwards
      evaluations and ``save_model`` use it where the last average is clearly worse, and
      ``callback.best`` has it.
    - ``evaluate``: which weights the evaluations in ``train`` measure: "averaged",
      "live", or "both", where the metrics of the live weights stand beside the usual
      ones as ``eval_loss_live``.
    - ``decays``: decays of further, passive averages of the same training, such as
      ``[0.99, 0.9999]``; the evaluations in ``train`` measure each of them, as
      ``eval_loss_ema_0.99``, and ``callback.further`` has them.
    - ``log_averaging``: log decay, number of switches, the share of the progress that a
      switch kept and the distance of the live weights to the average at the end of each
      epoch, through the Trainer's own loggers.

    Args:
        method: a name of ``switch_ema.METHODS``.
        options: those above, and those of the method, such as ``decay``.

    Example::

        trainer = Trainer(model, args, callbacks=[SwitchEMACallback(decay=0.999)])
    """

    @takes_callback_options
    def __init__(
        self,
        method: str = "switch-ema",
        **options: "Unpack[CallbackOptions]",
    ) -> None:
        self._settings = AveragingSettings.of(method, options)
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
        loop = "evaluation_loop"
        run_on_average(trainer, loop, self._evaluated, self._measure_all)
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

    def _measure_all(
        self,
        original: Callable[..., Any],
        shown: Callable[..., Any],
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Let an evaluation in ``train`` measure further weights, if asked to."""
        more = {}
        if self._averages is not None:
            measure = lambda: original(*args, **kwargs).metrics  # noqa: E731
            more = self._averages.measure_more(measure)
        found = shown(*args, **kwargs)
        if found.metrics is not None:
            found.metrics.update(more)
        return found

    def _evaluated(self) -> Averager | Best | None:
        if self._shows_best or self._averages is None:
            return None
        return self._averages.evaluated()

    def _save(self, args: TrainingArguments, folder: Path) -> None:
        """Put the averager and the live weights beside the averaged model.

        Before it, and thus before the file that makes a checkpoint complete: a run
        that is killed in between leaves none that would resume without the average.
        """
        assert self._trainer is not None
        takes_part = args.should_save or self._trainer.is_fsdp_enabled
        if self._averages is None or not takes_part:
            return
        saved = gathered(
            {
                "averager": self._averages.state_dict(),
                "live": self._averages.averager.live_tensors(),
                "first_epoch": self._first_epoch,
            }
        )
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
        if self._shows_best or self._averages is None:
            return None
        return self._averages.shown()

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
        if self._averages is not None:
            self._averages.detach()
        inner = getattr(optimizer, "optimizer", optimizer)  # inside Accelerate's
        wrapped = self._trainer.model_wrapped  # in DDP, whose buffers are shared
        self._averages = Averages(self._settings, wrapped, inner)
        self._shows_best = False
        self._first_epoch = int(state.epoch or 0)
        file = self._resumed_from and self._resumed_from / FILE
        if file and file.exists():
            saved = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
            load_live(self._averages.averager, saved["live"])
            self._averages.load_state_dict(saved["averager"])
            self._first_epoch = saved["first_epoch"]
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
        assert self._averages is not None
        self._averages.end_epochs(int(state.epoch or 0) - self._first_epoch)

    def on_epoch_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """End the epoch, before the Trainer evaluates and saves."""
        assert self._averages is not None and self._trainer is not None
        finished = self._averages.averager.epochs + 1
        if values := self._averages.end_epochs(finished):
            self._trainer.log(values)

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Note the score of an evaluation in ``train``."""
        if self._averages is not None:
            self._averages.note(metrics or {})

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Show the best averaged weights from now on, if they were just loaded."""
        loaded = args.load_best_model_at_end and state.best_model_checkpoint is not None
        assert self._averages is not None
        self._shows_best = bool(loaded)
        self._averages.finish()


def _folder(args: TrainingArguments, resume: str | bool | None) -> Path | None:
    """Name the folder that ``train(resume_from_checkpoint=resume)`` will load."""
    found = resume
    if resume is True:
        found = get_last_checkpoint(args.output_dir)  # type: ignore[no-untyped-call]
    return Path(found) if isinstance(found, str) else None
