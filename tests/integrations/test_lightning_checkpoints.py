"""What the Lightning callback saves, and that resuming from it is exact."""

import copy
import pickle
import warnings

import pytest
import torch

from switch_ema import constant
from tests.averaging.helpers import assert_same
from tests.integrations.helpers import (
    EPOCHS,
    OPTIONS,
    STEPS,
    WITHOUT_STATE,
    adam,
    assert_agree,
    assert_close,
    loader,
    loss_of,
    network,
    plain,
)

lightning = pytest.importorskip("lightning.pytorch")
from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402

from switch_ema.integrations.lightning import SwitchEMACallback  # noqa: E402
from tests.integrations.lightning_runs import Module, NoLog, fit, trainer  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("main", ["averaged", "live"])
@pytest.mark.parametrize(
    "when",
    ["mid-epoch", "last step", "validation", "mid-epoch validation", "epoch-end"],
)
def test_resuming_is_bit_for_bit(tmp_path, main, when):
    options = {"val_check_interval": 2} if "mid-epoch v" in when else {}
    whole, module, _ = fit(tmp_path, **options)
    saving = {
        "mid-epoch": {"every_n_train_steps": STEPS + 2},
        "last step": {"every_n_train_steps": STEPS},
        "validation": {"monitor": "loss", "save_on_train_epoch_end": False},
        "mid-epoch validation": {"monitor": "loss", "save_on_train_epoch_end": False},
        "epoch-end": {"save_on_train_epoch_end": True},
    }[when]
    keep = ModelCheckpoint(tmp_path, "{step}", save_top_k=-1, **saving)
    make = SwitchEMACallback(main_weights=main, **OPTIONS)
    fit(tmp_path, keep, make=make, max_epochs=2, **options)
    (path,) = tmp_path.glob(f"step={STEPS + 2 if 'mid' in when else STEPS}.ckpt")
    make = SwitchEMACallback(main_weights=main, **OPTIONS)
    again, resumed, _ = fit(tmp_path, make=make, ckpt=path, **options)
    assert_same(
        whole.averager.averaged_state_dict(), again.averager.averaged_state_dict()
    )
    assert_same(module.state_dict(), resumed.state_dict())
    assert again.averager.switches == whole.averager.switches == EPOCHS


@pytest.mark.parametrize("main", ["averaged", "live"])
@pytest.mark.parametrize("weights_only", [False, True])
def test_checkpoints_have_the_main_weights(tmp_path, main, weights_only):
    keep = ModelCheckpoint(tmp_path, "last", save_weights_only=weights_only)
    make = SwitchEMACallback("ema", main_weights=main, **OPTIONS)
    callback, module, run = fit(tmp_path, keep, make=make)
    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)
    expected = getattr(callback.averager, f"{main}_state_dict")()
    assert_same(saved["state_dict"], expected)
    assert ("switch_ema" in saved) is not weights_only
    if not weights_only:  # tested weights are the averaged ones in either case
        module.seen.clear()
        run.test(module, loader(), ckpt_path=tmp_path / "last.ckpt")
        averaged = callback.averager.averaged_state_dict()
        assert torch.equal(module.seen[0], averaged["net.0.weight"])


def test_a_checkpoint_written_inside_a_validation_has_the_live_weights(tmp_path):
    class Saves(Module):
        def validation_step(self, batch, index):
            self.trainer.save_checkpoint(tmp_path / "inside.ckpt")

    make = SwitchEMACallback("ema", **OPTIONS)
    fit(tmp_path, module=Saves(), make=make, max_epochs=1)
    saved = torch.load(tmp_path / "inside.ckpt", weights_only=True)
    reference = plain("ema", epochs=1)
    assert_close(saved["state_dict"], reference.averaged_state_dict(), "net.")
    live = reference.live_state_dict()
    assert_close(saved["switch_ema"]["live"], live, "net.")


def test_a_copied_callback_starts_without_an_averager(tmp_path):
    """As in the processes that a spawn strategy starts, which get it pickled."""
    callback, _, _ = fit(tmp_path, make=SwitchEMACallback("ema", decay=constant(0.9)))
    for again in (pickle.loads(pickle.dumps(callback)), copy.deepcopy(callback)):
        assert again.averager is None
        fit(tmp_path, make=again)
        assert_same(
            again.averager.averaged_state_dict(),
            callback.averager.averaged_state_dict(),
        )


def test_weights_loaded_after_a_training_stay_shown(tmp_path):
    """The best checkpoint was tested: to predict, it is not the last average again."""
    keep = ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1)
    make = SwitchEMACallback("ema", **OPTIONS)
    _, module, run = fit(tmp_path, keep, module=NoLog(), make=make)
    best = tmp_path / "epoch=0.ckpt"
    expected = torch.load(best, weights_only=True)["state_dict"]["net.0.weight"]
    run.test(module, loader(), ckpt_path=best)
    module.seen.clear()
    run.predict(module, loader())
    assert torch.equal(module.seen[0], expected)


def test_predicting_without_a_training_shows_the_module(tmp_path):
    module, callback = NoLog(), SwitchEMACallback()
    trainer(tmp_path, callback).predict(module, loader())
    assert callback.averager is None
    assert torch.equal(module.seen[0], module.net[0].weight)


def test_pytorch_lightning_is_served_by_the_same_callback(tmp_path):
    """The library under its other name, whose classes are not Lightning's."""
    pl = pytest.importorskip("pytorch_lightning")

    class Other(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = network()

        def training_step(self, batch, index):
            return loss_of(self.net, batch)

        def configure_optimizers(self):
            return adam(self.net)

    keep = pl.callbacks.ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1)
    for path in (None, tmp_path / "epoch=0.ckpt"):
        callback = SwitchEMACallback(**OPTIONS)
        run = pl.Trainer(
            default_root_dir=tmp_path,
            max_epochs=EPOCHS,
            accelerator="cpu",
            callbacks=[callback, keep],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        run.fit(Other(), loader(), ckpt_path=path)
        assert_agree(callback.averager, plain(), "net.")


def test_a_checkpoint_without_an_average_is_resumed_with_a_warning(tmp_path):
    keep = ModelCheckpoint(tmp_path, "plain", save_last=False)
    fit(tmp_path, make=keep, max_epochs=1)
    with pytest.warns(UserWarning, match=WITHOUT_STATE):
        again, _, _ = fit(tmp_path, ckpt=tmp_path / "plain.ckpt", max_epochs=2)
    assert again.averager.steps == STEPS


def test_the_average_of_lightnings_own_callback_is_taken_over(tmp_path):
    from lightning.pytorch.callbacks import EMAWeightAveraging

    keep = ModelCheckpoint(tmp_path, "peer")
    fit(tmp_path, keep, make=EMAWeightAveraging(decay=0.9), max_epochs=1)
    saved = torch.load(tmp_path / "peer.ckpt", weights_only=False)
    assert not torch.equal(
        saved["state_dict"]["net.0.weight"],
        saved["current_model_state"]["net.0.weight"],
    )

    class Look(lightning.Callback):
        def on_train_batch_start(self, trainer, module, *batch):
            if not hasattr(self, "live"):
                self.live = copy.deepcopy(module.state_dict())
                self.averaged = callback.averager.averaged_state_dict()

    look, callback = Look(), SwitchEMACallback(**OPTIONS)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", WITHOUT_STATE)
        fit(tmp_path, look, make=callback, ckpt=tmp_path / "peer.ckpt", max_epochs=2)
    assert_same(look.live, saved["current_model_state"])
    assert_same(look.averaged, saved["state_dict"])
    assert callback.averager.steps == 2 * STEPS
    assert callback.averager.epochs == 2
