"""Weight averaging in the Transformers Trainer: one callback, any method."""

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
    AVERAGER_FILE,
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


class SwitchEMACallback(HasAverages, TrainerCallback):
    """Average the weights of the model that a Trainer trains.

    Counts real optimizer steps, so gradient accumulation just works. Evaluation and
    prediction run on the averaged weights; the live weights are restored afterwards,
    even after an exception. The Trainer saves the averaged model (checkpoints,
    ``save_model``, pushes to the hub), so ``load_best_model_at_end`` and
    ``from_pretrained`` load it. Checkpoints also store the live weights, in
    ``switch_ema.pt``, from which ``resume_from_checkpoint`` continues, bit for bit.
    After ``train``, the model holds the live weights, or with
    ``load_best_model_at_end`` the best averaged weights. Under FSDP2, each process
    averages its own shards, and one process writes the whole average. FSDP1 and
    DeepSpeed are not supported.

    Besides the method's options, ``options`` takes those that all trainers share:

    - ``best``: keep the best average by an evaluation metric of ``train``, such as
      ``BestBy("eval_accuracy", higher_is_better=True, n=1000)``. After ``train``,
      evaluations and ``save_model`` use it if the last average is clearly worse.
      Available as ``callback.best``.
    - ``evaluate``: which weights evaluations in ``train`` measure: "averaged", "live",
      or "both", which adds the metrics of the live weights as ``eval_loss_live``.
    - ``decays``: decays of further averages, such as ``[0.99, 0.9999]``, which do not
      affect the training. Evaluations in ``train`` measure each, as
      ``eval_loss_ema_0.99``. Available as ``callback.further``.
    - ``log_averaging``: log the decay, the number of switches, the share of progress
      that a switch kept, and the distance from the live weights to the average at the
      end of each epoch, through the Trainer's loggers.

    Args:
        method: a key of ``switch_ema.METHODS``.
        options: those above, and the method's, such as ``decay``.

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

    # Wrapping the trainer's methods, since no event reports a failed evaluation.

    def attach(self, trainer: Trainer) -> None:
        """Add the callback to an existing trainer."""
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
            # Under FSDP it also saves the model, for load_best_model_at_end.
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
            return self._training(train, resume_from_checkpoint, *args, **kw)

        trainer.save_model = save_model  # type: ignore[method-assign]
        trainer.train = train_from  # type: ignore[method-assign]

    def _measure_all(
        self,
        original: Callable[..., Any],
        shown: Callable[..., Any],
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Also measure further weights in an evaluation of ``train``, if requested."""
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
        """Save the averager and the live weights along with the averaged model.

        They come before the model, and thus before the file that completes a
        checkpoint: a killed run leaves no checkpoint that lacks the average.
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
        write_atomically(folder / AVERAGER_FILE, lambda file: torch.save(saved, file))

    def on_init_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Attach to the trainer under construction."""
        # Events do not pass the trainer; find it as ``self`` of a calling frame.
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
        """Create the averager; when resuming, load its state and the live weights."""
        if self._trainer is None:
            raise RuntimeError(
                "SwitchEMACallback is not attached to a trainer; pass it to "
                "Trainer(callbacks=[...]), or call attach(trainer)."
            )
        if self._averages is not None:
            self._averages.detach()
        inner = getattr(optimizer, "optimizer", optimizer)  # unwrap Accelerate's
        wrapped = self._trainer.model_wrapped  # keep DDP: it shares buffers
        length = f"{state.max_steps}it" if state.max_steps > 0 else None
        self._averages = Averages(self._settings, wrapped, inner, length)
        self._shows_best = False
        self._first_epoch = int(state.epoch or 0)
        file = self._resumed_from and self._resumed_from / AVERAGER_FILE
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
        """End the previous epoch if the resumed checkpoint is from its last step."""
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
        """Record the score of an evaluation in ``train``, once per data set."""
        if self._averages is not None:
            self._averages.note_one_of_several(metrics or {})

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Finish; if the Trainer has just loaded its best model, leave it in place."""
        loaded = args.load_best_model_at_end and state.best_model_checkpoint is not None
        assert self._averages is not None
        self._shows_best = bool(loaded)
        self._averages.finish()


def _folder(args: TrainingArguments, resume: str | bool | None) -> Path | None:
    """Return the folder that ``train(resume_from_checkpoint=resume)`` will load."""
    found = resume
    if resume is True:
        found = get_last_checkpoint(args.output_dir)  # type: ignore[no-untyped-call]
    return Path(found) if isinstance(found, str) else None
