"""Weight averaging in Lightning: one callback, any method."""

from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from switch_ema._checks import check_choice
from switch_ema._extras import needed
from switch_ema.integrations.averages import (
    Averages,
    AveragingSettings,
    CallbackOptions,
    HasAverages,
    takes_callback_options,
)
from switch_ema.integrations.sharding import gathered
from switch_ema.integrations.wrapping import check_alone, warn_without_state

if TYPE_CHECKING:
    from typing_extensions import Unpack

with needed("lightning", extra="lightning"):
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.trainer.states import TrainerFn

    from switch_ema.integrations.lightning_validation import validate_again

_KEY = "switch_ema"
_FOREIGN = {"current_model_state", "averaging_state"}
"""Keys that Lightning's own WeightAveraging callback adds to a checkpoint."""


class SwitchEMACallback(HasAverages, Callback):
    """Average the weights of a LightningModule during training.

    Counts real optimizer steps: not the micro-batches of gradient accumulation, nor
    steps that a GradScaler skips. Validation, test and prediction run on the averaged
    weights; the live weights are restored afterwards, even after an exception. After
    ``fit``, the module holds the live weights.

    A checkpoint stores the averaged weights under ``state_dict``, so
    ``load_from_checkpoint`` returns the averaged model. It stores the live weights too,
    from which ``fit(ckpt_path=...)`` resumes, bit for bit. Weights-only checkpoints
    store only the main weights. The average in a checkpoint of Lightning's own
    ``WeightAveraging`` is imported; resuming from a checkpoint without an average
    warns.

    Besides the method's options, ``options`` takes those that all trainers share:

    - ``best``: keep the best average by a validation metric, such as
      ``BestBy("val_acc", higher_is_better=True, n=1000)``. After ``fit``, tests and
      predictions run on it if the last average is clearly worse. Available as
      ``callback.best``. Checkpoints still store the latest average.
    - ``evaluate``: which weights validation in ``fit`` measures: "averaged", "live", or
      "both", which adds the metrics of the live weights as ``val_loss_live``.
    - ``decays``: decays of further averages, such as ``[0.99, 0.9999]``, which do not
      affect the training. Validation in ``fit`` measures each, as
      ``val_loss_ema_0.99``. Available as ``callback.further``.
    - ``log_averaging``: log the decay, the number of switches, the share of progress
      that a switch kept, and the distance from the live weights to the average at the
      end of each epoch, through the trainer's loggers.

    Args:
        method: a key of ``switch_ema.METHODS``.
        main_weights: the weights that a checkpoint stores under ``state_dict``,
            "averaged" or "live"; it stores the others separately.
        options: those above, and the method's, such as ``decay``.

    Example::

        trainer = Trainer(callbacks=[SwitchEMACallback(decay=0.999)])
    """

    @takes_callback_options
    def __init__(
        self,
        method: str = "switch-ema",
        *,
        main_weights: Literal["averaged", "live"] = "averaged",
        **options: "Unpack[CallbackOptions]",
    ) -> None:
        self._settings = AveragingSettings.of(method, options)
        check_choice("main_weights", main_weights, ("averaged", "live"))
        self._main_weights = main_weights
        self._more: dict[str, float] = {}
        self._old_score: Tensor | None = None
        self._view = ExitStack()
        self._saved: dict[str, Any] | None = None
        self._foreign: dict[str, Any] | None = None
        self._module: LightningModule | None = None
        self._first_epoch = 0
        self._shows_loaded = False

    def __getstate__(self) -> dict[str, Any]:
        """Drop the averager from copies, such as those sent to spawned processes."""
        fresh = {"_averages": None, "_module": None, "_view": ExitStack()}
        forgotten = {"_saved": None, "_foreign": None, "_shows_loaded": False}
        return vars(self) | fresh | forgotten

    # Setup and teardown.

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Discard state loaded by a previous run."""
        check_alone(self, trainer.callbacks, SwitchEMACallback)  # type: ignore[attr-defined]
        self._saved = self._foreign = None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Create the averager, now that the optimizers exist."""
        if self._averages is not None:
            self._averages.detach()
            goes_on = trainer.global_step > 0 and pl_module is self._module
            if self._saved is None and goes_on:
                self._saved = self._state()
        self._module = pl_module
        self._averages = Averages(
            self._settings,
            trainer.model or pl_module,  # keep a DDP wrapper: it shares buffers
            trainer.optimizers,
            _length(trainer),
        )
        self._shows_loaded = False
        self._load()
        # Lightning calls only the module's hook for weights-only checkpoints.
        original = pl_module.on_save_checkpoint

        def on_save_checkpoint(checkpoint: dict[str, Any]) -> None:
            if _KEY not in checkpoint:
                checkpoint["state_dict"] = self._weights(trainer, self._main_weights)
            original(checkpoint)

        pl_module.__dict__["on_save_checkpoint"] = on_save_checkpoint

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Use the best average from now on."""
        if self._averages is not None:
            self._averages.finish()

    def teardown(
        self, trainer: Trainer, pl_module: LightningModule, stage: str
    ) -> None:
        """Remove our hook from the module, which could not be pickled with it."""
        pl_module.__dict__.pop("on_save_checkpoint", None)

    # Counting epochs.

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count from the current epoch if training began without averaging.

        End the previous epoch if the resumed checkpoint is from before its end, which
        Lightning skips; it may skip the start of the next one, too.
        """
        assert self.averager is not None
        self._load()  # some strategies restore only after setup
        self._load_foreign(trainer)
        if self.averager.steps == self.averager.epochs == 0:
            self._first_epoch = trainer.current_epoch
        self._end_epochs(trainer.current_epoch)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End the epoch, unless the resumed checkpoint already counts it."""
        if values := self._end_epochs(trainer.current_epoch + 1):
            pl_module.log_dict(values)

    def _end_epochs(self, finished: int) -> dict[str, float]:
        assert self._averages is not None
        return self._averages.end_epochs(finished - self._first_epoch)

    # The averaged view.

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show the average, which equals the live model before the first step.

        Weights loaded with ``ckpt_path`` are used unchanged from then on.
        """
        if trainer.state.fn != TrainerFn.FITTING and trainer.ckpt_path:
            self._shows_loaded = True
        if self._averages is None or self._shows_loaded:
            return
        if trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking:
            self._old_score = self._score(trainer)
            self._more = self._averages.measure_more(
                lambda: validate_again(trainer, pl_module)
            )
        self._view.enter_context(self._averages.evaluated_view())

    def on_validation_epoch_end(
        self, trainer: Trainer, pl_module: LightningModule
    ) -> None:
        """Log the metrics of the other weights along with the main ones."""
        values, self._more = self._more, {}
        # With several loaders, the names hold the loader's index already.
        sync = trainer.world_size > 1
        pl_module.log_dict(values, sync_dist=sync, add_dataloader_idx=False)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restore the live weights, and record the score of a validation in ``fit``."""
        self._view.close()
        is_score = trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking
        if self._averages is None or not is_score:
            return
        # Lightning keeps a metric until a validation logs it again.
        score = self._score(trainer)
        if score is None or score is not self._old_score:
            self._averages.note(trainer.callback_metrics)

    def _score(self, trainer: Trainer) -> Tensor | None:
        best = self._settings.best
        return None if best is None else trainer.callback_metrics.get(best.metric)

    on_test_start = on_predict_start = on_validation_start

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restore the live weights."""
        self._view.close()

    on_predict_end = on_test_end

    def on_exception(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        exception: BaseException,
    ) -> None:
        """Restore the live weights."""
        self._view.close()
        self._more = {}
        if self._averages is not None:
            self._averages.is_training = False
        pl_module.__dict__.pop("on_save_checkpoint", None)

    # Checkpoints.

    def on_save_checkpoint(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        checkpoint: dict[str, Any],
    ) -> None:
        """Store both sets of weights and the averager, even during a validation."""
        if self.averager is None:
            return
        other = "live" if self._main_weights == "averaged" else "averaged"
        checkpoint["state_dict"] = self._weights(trainer, self._main_weights)
        checkpoint[_KEY] = self._state() | {other: self._weights(trainer, other)}

    def on_load_checkpoint(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        checkpoint: dict[str, Any],
    ) -> None:
        """Load the live weights to resume training, otherwise the averaged ones."""
        fitting = trainer.state.fn == TrainerFn.FITTING
        saved = checkpoint.get(_KEY)
        if saved is None:
            if fitting and checkpoint.keys() >= _FOREIGN:
                self._foreign = checkpoint
                live = {"state_dict": checkpoint["current_model_state"]}
                strict = pl_module.strict_loading
                trainer.strategy.load_model_state_dict(live, strict=strict)
            elif fitting:
                warn_without_state()
            return
        wanted = "live" if fitting else "averaged"
        if wanted in saved:
            trainer.strategy.load_model_state_dict(
                {"state_dict": saved[wanted]}, strict=pl_module.strict_loading
            )
        if fitting:
            self._saved = saved

    def _weights(self, trainer: Trainer, which: str) -> dict[str, Any]:
        """Copy the strategy's state dict, whose names the strategy can load."""
        assert self._averages is not None
        block: AbstractContextManager[Any] = self._averages.live_view()
        if which == "averaged":
            block = self._averages.averager.averaged()
        with block:
            weights = trainer.strategy.lightning_module_state_dict()
            return {
                name: value.clone() if isinstance(value, Tensor) else value
                for name, value in weights.items()
            }

    def _state(self) -> dict[str, Any]:
        assert self._averages is not None
        state = gathered(self._averages.state_dict())
        return {"averager": state, "first_epoch": self._first_epoch}

    def _load_foreign(self, trainer: Trainer) -> None:
        """Import the average from a checkpoint of Lightning's WeightAveraging."""
        if self._foreign is None or self.averager is None:
            return
        state = self.averager.state_dict()
        extra = {}
        if "averaged_models" in state:
            extra["averaged_models"] = int(
                self._foreign["averaging_state"]["n_averaged"]
            )
        known = self._foreign["state_dict"].keys() & state["shadow"].keys()
        self.averager.load_average(
            {name: self._foreign["state_dict"][name] for name in known},
            steps=trainer.global_step,
            epochs=trainer.current_epoch,
            **extra,
        )
        self._foreign, self._first_epoch = None, 0

    def _load(self) -> None:
        if self._saved is not None and self._averages is not None:
            # Tensors are whole; each process takes its shards.
            self._averages.load_state_dict(self._saved["averager"])
            self._first_epoch = self._saved["first_epoch"]
            self._saved = None


def _length(trainer: Trainer) -> str | None:
    """Return the length of the run, None if nothing but time limits it."""
    if trainer.max_steps and trainer.max_steps > 0:
        return f"{trainer.max_steps}it"
    epochs = trainer.max_epochs
    return f"{epochs}ep" if epochs is not None and epochs > 0 else None
