"""The Lightning callback against the plain loop, and how Lightning's own differs."""

import logging
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from tests.averaging.helpers import assert_same
from tests.integrations.helpers import (
    EPOCHS,
    OPTIONS,
    STEPS,
    Interrupted,
    adam,
    assert_agree,
    assert_close,
    loader,
    loss_of,
    network,
    plain,
    sgd,
)

lightning = pytest.importorskip("lightning.pytorch")
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint  # noqa: E402

from switch_ema.integrations.lightning import SwitchEMACallback  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
for name in ("lightning.pytorch", "lightning.pytorch.utilities.rank_zero"):
    logging.getLogger(name).setLevel(logging.ERROR)


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = network()
        self.seen = []

    def training_step(self, batch, index):
        return loss_of(self.net, batch)

    def validation_step(self, batch, index):
        self.log("loss", loss_of(self.net, batch))
        self.seen.append(self.net[0].weight.detach().clone())

    test_step = predict_step = validation_step

    def configure_optimizers(self):
        return adam(self.net)


class Stateful(DataLoader):
    """Goes on where it stopped, which Lightning needs to resume within an epoch."""

    position = resume_at = 0

    def __iter__(self):
        start, self.resume_at = self.resume_at, 0
        for self.position, batch in enumerate(super().__iter__(), start=1):
            if self.position > start:
                yield batch

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.resume_at = state["position"] % STEPS


class NoLog(Module):
    def predict_step(self, batch, index):
        self.seen.append(self.net[0].weight.detach().clone())


def trainer(folder, *callbacks, **options):
    options = {"max_epochs": EPOCHS, "num_sanity_val_steps": 0} | options
    return lightning.Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        callbacks=list(callbacks),
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=any(isinstance(c, ModelCheckpoint) for c in callbacks),
        **options,
    )


def fit(folder, *others, module=None, ckpt=None, batch=16, val=True, make=None, **opts):
    callback = make or SwitchEMACallback(**OPTIONS)
    module = module or Module()
    run = trainer(folder, callback, *others, **opts)
    data = Stateful(loader().dataset, batch)
    run.fit(module, data, loader() if val else None, ckpt_path=ckpt)
    return callback, module, run


@pytest.mark.parametrize("method", ["switch-ema", "ema", "swa", "lookahead"])
def test_equals_the_plain_loop(tmp_path, method):
    options = OPTIONS if "ema" in method else {}
    callback, _, _ = fit(tmp_path, make=SwitchEMACallback(method, **options))
    reference = plain(method) if options else plain_without_decay(method)
    assert_agree(callback.averager, reference, "net.")


def plain_without_decay(method):
    from switch_ema import create_averager

    model = network()
    optimizer = adam(model)
    averager = create_averager(method, model, optimizer)
    for _ in range(EPOCHS):
        for batch in loader():
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
        averager.end_epoch()
    return averager


def test_accumulation_counts_optimizer_steps(tmp_path):
    callback, _, _ = fit(tmp_path, batch=8, accumulate_grad_batches=2)
    assert_agree(callback.averager, plain(batch=8, accumulate=2), "net.")
    assert callback.averager.steps == EPOCHS * STEPS


def test_evaluations_see_the_average_and_leave_the_live_weights(tmp_path):
    callback, module, run = fit(tmp_path, module=NoLog(), make=SwitchEMACallback("ema"))
    averaged = callback.averager.averaged_state_dict()["net.0.weight"]
    assert not torch.equal(averaged, module.net[0].weight)
    for evaluate in (run.validate, run.test, run.predict):
        module.seen.clear()
        live = module.net[0].weight.detach().clone()
        evaluate(module, loader())
        assert torch.equal(module.seen[0], averaged)
        assert torch.equal(module.net[0].weight, live)


def test_sanity_check_sees_the_live_weights(tmp_path):
    module = Module()
    with torch.no_grad():
        module.net[0].weight.fill_(0.25)  # loaded late, after construction
    _, module, _ = fit(tmp_path, module=module, num_sanity_val_steps=1)
    assert torch.equal(module.seen[0], torch.full((16, 64), 0.25))


def test_a_failing_validation_restores_the_live_weights(tmp_path):
    class Fails(Module):
        def validation_step(self, batch, index):
            raise Interrupted

    module = Fails()
    callback = SwitchEMACallback("ema", **OPTIONS)
    with pytest.raises(Interrupted):
        fit(tmp_path, module=module, make=callback)
    # The first validation comes after one epoch.
    reference = plain("ema", epochs=1).live_state_dict()
    assert_close(module.net.state_dict(), reference)


def test_early_stopping_watches_the_average(tmp_path):
    stop = EarlyStopping("loss", patience=1, min_delta=1e9)
    callback, module, run = fit(tmp_path, stop, make=SwitchEMACallback("ema"))
    assert run.current_epoch == 2
    with callback.averager.averaged(), torch.no_grad():
        module.eval()
        loss = sum(loss_of(module.net, batch) for batch in loader()) / STEPS
    assert run.callback_metrics["loss"].item() == pytest.approx(loss.item(), abs=1e-6)


def test_a_run_without_an_average_keeps_its_weights(tmp_path):
    callback, module, _ = fit(tmp_path, make=SwitchEMACallback("swa", start=99))
    assert_close(module.net.state_dict(), plain("ema").live_state_dict())
    assert_close(
        callback.averager.averaged_state_dict(), module.net.state_dict(), "net."
    )


@pytest.mark.parametrize("main", ["averaged", "live"])
@pytest.mark.parametrize("when", ["mid-epoch", "validation", "epoch-end"])
def test_resuming_is_bit_for_bit(tmp_path, main, when):
    whole, module, _ = fit(tmp_path)
    saving = {
        "mid-epoch": {"every_n_train_steps": STEPS + 2},
        "validation": {"monitor": "loss", "save_on_train_epoch_end": False},
        "epoch-end": {"save_on_train_epoch_end": True},
    }[when]
    keep = ModelCheckpoint(tmp_path, "{step}", save_top_k=-1, **saving)
    make = SwitchEMACallback(main_weights=main, **OPTIONS)
    fit(tmp_path, keep, make=make, max_epochs=2)
    (path,) = tmp_path.glob(f"step={STEPS + 2 if when == 'mid-epoch' else STEPS}.ckpt")
    make = SwitchEMACallback(main_weights=main, **OPTIONS)
    again, resumed, _ = fit(tmp_path, make=make, ckpt=path)
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


def test_steps_skipped_by_the_scaler_do_not_count(tmp_path):
    from lightning.pytorch.plugins import MixedPrecision

    class Overflows(Module):
        def training_step(self, batch, index):
            loss = loss_of(self.net, batch)
            return loss * float("inf") if index == 1 else loss

    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    plugin = MixedPrecision("16-mixed", "cpu", scaler)
    callback, _, _ = fit(tmp_path, module=Overflows(), val=False, plugins=[plugin])
    assert callback.averager.steps == EPOCHS * (STEPS - 1)


def test_manual_optimization_with_two_optimizers(tmp_path):
    class Two(Module):
        automatic_optimization = False

        def training_step(self, batch, index):
            for optimizer in self.optimizers():
                optimizer.zero_grad()
                self.manual_backward(loss_of(self.net, batch))
                optimizer.step()

        def configure_optimizers(self):
            return [adam(self.net[:2]), adam(self.net[3])]

    callback, _, _ = fit(tmp_path, module=Two())
    assert callback.averager.steps == EPOCHS * STEPS
    assert callback.averager.switches == EPOCHS


def test_a_second_fit_of_the_same_trainer_goes_on(tmp_path):
    callback, module, run = fit(tmp_path, max_epochs=1)
    run.fit_loop.max_epochs = EPOCHS
    run.fit(module, loader(), loader())
    assert callback.averager.epochs == EPOCHS
    assert callback.averager.steps == EPOCHS * STEPS


def test_the_module_can_be_pickled_afterwards(tmp_path):
    _, module, _ = fit(tmp_path)
    assert "on_save_checkpoint" not in vars(module)


def test_lightnings_own_callback_mixes_up_weights_after_an_exception(tmp_path):
    """The peer: an exception in validation leaves the average in the model."""
    from lightning.pytorch.callbacks import EMAWeightAveraging

    class Fails(Module):
        def validation_step(self, batch, index):
            raise Interrupted

    module = Fails()
    with pytest.raises(Interrupted):
        fit(tmp_path, module=module, make=EMAWeightAveraging(decay=0.9))
    live = plain("ema", epochs=1).live_state_dict()
    assert not torch.allclose(module.net[0].weight, live["0.weight"], atol=1e-6)


def test_bad_names_are_refused_at_once():
    with pytest.raises(ValueError, match="method must be"):
        SwitchEMACallback("emma")
    with pytest.raises(ValueError, match="main_weights must be"):
        SwitchEMACallback(main_weights="both")


def test_two_processes_equal_the_plain_loop_and_resume(tmp_path):
    """DDP, and FSDP2 in Lightning's ModelParallelStrategy."""
    from tests.integrations.two_processes import small_network

    script = Path(__file__).with_name("two_processes.py")
    command = [sys.executable, str(script), str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert run.returncode == 0, run.stderr[-3000:]
    reference = plain(batch=32, model=small_network(), make_optimizer=sgd)
    for kind in ("ddp", "fsdp2"):
        for name in ("whole", "resumed"):
            found = torch.load(tmp_path / kind / f"{name}.pt", weights_only=True)
            assert found["steps"] == reference.steps
            assert_close(found["averaged"], reference.averaged_state_dict(), "net.")
            assert_close(found["live"], reference.live_state_dict(), "net.")


def test_lightnings_own_callback_loses_a_run_in_which_averaging_never_starts(tmp_path):
    """The peer: at the end the initial weights are copied over the trained ones."""
    from lightning.pytorch.callbacks import EMAWeightAveraging

    module = Module()
    initial = module.net[0].weight.detach().clone()
    fit(tmp_path, module=module, make=EMAWeightAveraging(update_starting_at_step=999))
    assert torch.equal(module.net[0].weight, initial)
