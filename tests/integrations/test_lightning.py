"""The Lightning callback against the plain loop, and how Lightning's own differs."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Subset

from switch_ema import create_averager, surviving_share
from switch_ema.bench.logs.reading import read_log
from tests.averaging.helpers import assert_same
from tests.integrations.helpers import (
    CURVES,
    ENDS,
    EPOCHS,
    OPTIONS,
    SCORES,
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
    small_network,
)

lightning = pytest.importorskip("lightning.pytorch")
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint  # noqa: E402
from lightning.pytorch.loggers import CSVLogger  # noqa: E402
from torchmetrics.classification import MulticlassAccuracy  # noqa: E402

from switch_ema.integrations.best import BestBy  # noqa: E402
from switch_ema.integrations.lightning import SwitchEMACallback  # noqa: E402
from tests.integrations.lightning_runs import Module, NoLog, fit, trainer  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("method", ["switch-ema", "ema", "swa", "lookahead"])
def test_equals_the_plain_loop(tmp_path, method):
    options = OPTIONS if "ema" in method else {}
    callback, _, _ = fit(tmp_path, make=SwitchEMACallback(method, **options))
    reference = plain(method) if options else plain_without_decay(method)
    assert_agree(callback.averager, reference, "net.")


class Scored(NoLog):
    """Logs a score of its own making: the second of three epochs is the best."""

    def validation_step(self, batch, index):
        super().validation_step(batch, index)
        self.log("score", SCORES[self.trainer.current_epoch])


def test_the_best_average_is_tested_and_resumed(tmp_path):
    def best():
        by = BestBy("score", higher_is_better=True, n=100)
        return SwitchEMACallback("ema", best=by, **OPTIONS)

    keep = ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1)
    callback, module, run = fit(tmp_path, keep, module=Scored(), make=best())
    assert callback.best.scores == pytest.approx(list(SCORES))
    expected = module.seen[STEPS]  # as it was in the second validation
    module.seen.clear()
    run.test(module, loader())
    assert torch.equal(module.seen[0], expected)
    shown = callback.best.averaged_state_dict()["net.0.weight"]
    assert torch.equal(shown, expected)
    assert not torch.equal(module.net[0].weight, expected)
    for epoch in range(EPOCHS):
        ckpt = tmp_path / f"epoch={epoch}.ckpt"
        again, _, _ = fit(tmp_path, module=Scored(), make=best(), ckpt=ckpt)
        assert again.best.scores == callback.best.scores
        for found, whole in zip(
            (again.best.averaged_state_dict(), again.averager.live_state_dict()),
            (callback.best.averaged_state_dict(), callback.averager.live_state_dict()),
            strict=True,
        ):
            assert_same(found, whole)


def test_a_metric_that_is_not_measured_is_named(tmp_path):
    by = BestBy("val_acc", higher_is_better=True, n=100)
    with pytest.raises(ValueError, match=r"needs the metric 'val_acc'.* reported loss"):
        fit(tmp_path, make=SwitchEMACallback(best=by, **OPTIONS))


def test_a_metric_of_an_earlier_validation_is_no_score(tmp_path):
    class Seldom(Module):
        def validation_step(self, batch, index):
            if self.current_epoch != 1:
                self.log("score", 0.5)

    by = BestBy("score", higher_is_better=True, n=100)
    callback = SwitchEMACallback("ema", best=by, **OPTIONS)
    fit(tmp_path, make=callback, module=Seldom())
    assert callback.best.scores == [0.5] * (EPOCHS - 1)


def plain_without_decay(method):
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


@pytest.mark.parametrize(("batch", "accumulate"), [(8, 2), (16, 3)])
def test_accumulation_counts_optimizer_steps(tmp_path, batch, accumulate):
    """Of 4 batches by 3, Lightning steps after the third and after the last."""
    callback, _, _ = fit(tmp_path, batch=batch, accumulate_grad_batches=accumulate)
    reference = plain(batch=batch, accumulate=accumulate)
    assert_agree(callback.averager, reference, "net.")
    assert callback.averager.steps == EPOCHS * (STEPS if batch == 8 else 2)


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
    class LoadsLate(lightning.Callback):
        def on_sanity_check_start(self, trainer, pl_module):
            with torch.no_grad():  # when the averager has been made
                pl_module.net[0].weight.fill_(0.25)

    make = SwitchEMACallback("ema", **OPTIONS)
    _, module, _ = fit(tmp_path, LoadsLate(), make=make, num_sanity_val_steps=1)
    assert torch.equal(module.seen[0], torch.full((16, 64), 0.25))
    assert not torch.equal(module.seen[1], module.seen[0])


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


def test_an_exception_ends_the_training(tmp_path):
    """Evaluations after it measure what is shown, and log nothing else."""

    class Fails(Module):
        def validation_step(self, batch, index):
            if len(self.seen) == STEPS:  # when the live weights have been measured
                raise Interrupted
            super().validation_step(batch, index)

    callback = SwitchEMACallback("ema", evaluate="both", **OPTIONS)
    module, run = Fails(), trainer(tmp_path, callback)
    with pytest.raises(Interrupted):
        run.fit(module, loader(), loader())
    module.seen.clear()
    module.validation_step = Module.validation_step.__get__(module)
    (found,) = run.validate(module, loader(), verbose=False)
    assert set(found) == {"loss"}


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


def step_in_turn(net, batch, optimizers, backward):
    for optimizer in optimizers:
        net.zero_grad()
        backward(loss_of(net, batch))
        optimizer.step()


def test_manual_optimization_with_two_optimizers(tmp_path):
    class Two(Module):
        automatic_optimization = False

        def training_step(self, batch, index):
            step_in_turn(self.net, batch, self.optimizers(), self.manual_backward)

        def configure_optimizers(self):
            return [adam(self.net[:2]), adam(self.net[3])]

    callback, _, _ = fit(tmp_path, module=Two())
    net = network()
    optimizers = [adam(net[:2]), adam(net[3])]
    reference = create_averager("switch-ema", net, optimizers, **OPTIONS)
    for _ in range(EPOCHS):
        for batch in loader():
            step_in_turn(net, batch, optimizers, torch.Tensor.backward)
        reference.end_epoch()
    assert_agree(callback.averager, reference, "net.")
    assert callback.averager.steps == EPOCHS * STEPS


class Late(Module):
    """The second optimizer, such as a discriminator's, starts in the last epoch."""

    automatic_optimization = False

    def training_step(self, batch, index):
        first, second = self.optimizers()
        self.manual_backward(loss_of(self.net, batch))
        first.step()
        if self.current_epoch == EPOCHS - 1:
            second.step()
        self.zero_grad()

    def configure_optimizers(self):
        return [adam(self.net[:2]), adam(self.net[3])]


@pytest.mark.parametrize("count", ["round", 0])
def test_an_optimizer_that_starts_late_is_not_waited_for(tmp_path, count):
    module = Late()
    initial = module.net[0].weight.detach().clone()
    make = SwitchEMACallback("ema", count=count, decays=[0.5], **OPTIONS)
    callback, _, _ = fit(tmp_path, module=module, make=make)
    assert callback.averager.steps == EPOCHS * STEPS
    assert callback.further["ema_0.5"].steps == EPOCHS * STEPS
    assert not torch.equal(module.seen[-1], initial)  # validated on the average


def test_waiting_for_an_optimizer_that_starts_late_says_so(tmp_path):
    make = SwitchEMACallback("ema", count="all", **OPTIONS)
    with pytest.warns(
        UserWarning, match=r"waits for optimizer 1 \(Adam\); choose count"
    ):
        callback, _, _ = fit(tmp_path, module=Late(), make=make)
    assert callback.averager.steps == STEPS


def test_a_second_fit_of_the_same_trainer_goes_on(tmp_path):
    callback, module, run = fit(tmp_path, max_epochs=1)
    run.fit_loop.max_epochs = EPOCHS
    run.fit(module, loader(), loader())
    assert callback.averager.epochs == EPOCHS
    assert callback.averager.steps == EPOCHS * STEPS


def test_another_trainer_or_module_with_the_same_callback_starts_anew(tmp_path):
    callback, _, _ = fit(tmp_path, max_epochs=1)
    _, _, run = fit(tmp_path, make=callback)
    assert_agree(callback.averager, plain(), "net.")
    run.fit_loop.max_epochs = 2 * EPOCHS
    run.fit(Module(), loader(), loader())
    assert_agree(callback.averager, plain(), "net.")


def test_a_second_callback_is_refused(tmp_path):
    with pytest.raises(ValueError, match="takes one SwitchEMACallback, got 2"):
        fit(tmp_path, SwitchEMACallback("ema"))


@pytest.mark.parametrize("call", ["validate", "test", "predict"])
def test_a_failing_evaluation_restores_the_live_weights(tmp_path, call):
    callback, module, run = fit(tmp_path, make=SwitchEMACallback("ema", **OPTIONS))

    def fails(*_):
        assert not torch.equal(module.net[0].weight, live["net.0.weight"])
        raise Interrupted

    live = callback.averager.live_state_dict()
    module.validation_step = module.test_step = module.predict_step = fails
    with pytest.raises(Interrupted):
        getattr(run, call)(module, loader())
    assert_same(dict(module.state_dict()), live)


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
    script = Path(__file__).with_name("two_processes.py")
    command = [sys.executable, str(script), str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=800)
    assert run.returncode == 0, run.stderr[-3000:]
    reference, first = (
        plain(batch=32, model=small_network(), make_optimizer=sgd, epochs=epochs)
        for epochs in (EPOCHS, 1)
    )
    for kind in ("ddp", "fsdp2"):
        for name in ("whole", "resumed"):
            found = torch.load(tmp_path / kind / f"{name}.pt", weights_only=True)
            assert found["steps"] == reference.steps
            assert_close(found["averaged"], reference.averaged_state_dict(), "net.")
            assert_close(found["live"], reference.live_state_dict(), "net.")
            assert found["scores"] == sorted(found["scores"], reverse=True)
            assert len(found["scores"]) == EPOCHS
            assert_close(found["best"], first.averaged_state_dict(), "net.")
            assert found["logged"]["averaging/distance"] > 0
            assert found["logged"]["loss_live"] != found["logged"]["loss"]
            whole = torch.load(tmp_path / kind / "whole.pt", weights_only=True)
            assert_same(found["further"], whole["further"])


def test_lightnings_own_callback_loses_a_run_in_which_averaging_never_starts(tmp_path):
    """The peer: at the end the initial weights are copied over the trained ones."""
    from lightning.pytorch.callbacks import EMAWeightAveraging

    module = Module()
    initial = module.net[0].weight.detach().clone()
    fit(tmp_path, module=module, make=EMAWeightAveraging(update_starting_at_step=999))
    assert torch.equal(module.net[0].weight, initial)


class Measured(Module):
    """Logs a number of each batch, one at the end, and a metric of torchmetrics."""

    def __init__(self):
        super().__init__()
        self.accuracy = MulticlassAccuracy(10)

    def validation_step(self, batch):  # without its index, which Lightning allows
        super().validation_step(batch, 0)
        self.accuracy(self.net(batch[0]), batch[1])
        self.log("accuracy", self.accuracy)
        self.log_dict({"half": 0.5 * loss_of(self.net, batch)})

    def on_validation_epoch_end(self):
        self.log("weight", self.net[0].weight.sum())


def test_both_curves_are_those_of_each_alone(tmp_path):
    """The live ones have their own names; training and random numbers are the same."""
    found, left = {}, []
    for evaluate in ("averaged", "live", "both"):
        options = {**OPTIONS, "evaluate": evaluate, "log_averaging": True}
        options["decays"] = [0.5, "constant(0.9)"]
        callback, module = SwitchEMACallback("ema", **options), Measured()
        logger = CSVLogger(tmp_path, name=evaluate)
        run = trainer(tmp_path, callback, logger=logger, log_every_n_steps=1)
        run.fit(module, loader(), DataLoader(loader().dataset, 40))
        found[evaluate] = read_log(tmp_path / evaluate / "version_0" / "metrics.csv")
        left.append((module.net[0].weight.sum().item(), torch.rand(()).item()))
    both = found["both"]
    for name in ("loss", "accuracy", "half", "weight"):
        assert len(both[name]) == EPOCHS and both[name] != both[f"{name}_live"]
        assert both[name] == found["averaged"][name]
        assert both[f"{name}_live"] == pytest.approx(found["live"][name], rel=1e-5)
        # The same decay gives the same values; another one its own.
        again = both[f"{name}_ema_constant(0.9)"]
        assert again == pytest.approx(both[name], rel=1e-5)
        assert both[f"{name}_ema_0.5"] != both[name]
    assert both["averaging/decay"] == pytest.approx([0.9] * EPOCHS)
    assert both["averaging/decay_ema_0.5"][-1] < 0.9
    live, average = (
        callback.averager.live_tensors(),
        callback.averager.averaged_tensors(),
    )
    names = [name for name, tensor in live.items() if tensor.is_floating_point()]
    between = sum((live[n] - average[n]).square().sum() for n in names)
    norm = sum(live[n].square().sum() for n in names)
    expected = (between / norm).sqrt().item()
    assert both["averaging/distance"][-1] == pytest.approx(expected, rel=1e-4)
    assert left[0] == left[1] == left[2]


def test_both_curves_on_two_validation_sets(tmp_path):
    class Two(Module):
        def validation_step(self, batch, index, dataloader_idx=0):
            super().validation_step(batch, index)

    name = "loss/dataloader_idx_1"
    by = BestBy(name, higher_is_better=False, error=0.01)
    make = SwitchEMACallback("ema", evaluate="both", best=by, **CURVES)
    run = trainer(tmp_path, make)
    other = DataLoader(Subset(loader().dataset, range(40)), 16)
    run.fit(Two(), loader(), [loader(), other])
    logged = {key: float(value) for key, value in run.callback_metrics.items()}
    assert make.best.scores[-1] == pytest.approx(logged[name])
    assert logged[f"{name}_ema_constant(0.9)"] == pytest.approx(logged[name], rel=1e-5)
    for end in ENDS:
        assert logged[f"loss/dataloader_idx_0{end}"] != logged[f"{name}{end}"]


def test_switches_and_what_they_keep_are_logged(tmp_path):
    callback = SwitchEMACallback(log_averaging=True, **OPTIONS)
    _, _, run = fit(tmp_path, make=callback)
    logged = {k: float(v) for k, v in run.callback_metrics.items()}
    assert logged["averaging/switches"] == EPOCHS
    kept = surviving_share(0.9, STEPS)
    assert logged["averaging/kept_share"] == pytest.approx(kept, rel=1e-5)


def test_what_is_evaluated_must_fit_the_best():
    with pytest.raises(ValueError, match="evaluate must be 'averaged' or 'live' or"):
        SwitchEMACallback(evaluate="all")
    by = BestBy("val_acc", higher_is_better=True, n=100)
    with pytest.raises(ValueError, match="best ranks averages by their own scores"):
        SwitchEMACallback(evaluate="live", best=by)


@pytest.mark.parametrize(
    ("length", "expected"),
    [({}, EPOCHS * STEPS / 2), ({"max_steps": STEPS, "max_epochs": -1}, STEPS / 2)],
)
def test_an_average_may_begin_after_a_share_of_the_run(tmp_path, length, expected):
    callback = SwitchEMACallback("ema", start="50%", decays=[0.5], **OPTIONS)
    callback, _, _ = fit(tmp_path, make=callback, val=False, **length)
    began = [one.state_dict()["average_start"] for one in callback.further.values()]
    began.append(callback.averager.state_dict()["average_start"])
    assert began == [expected, expected]
