"""The MMEngine hooks in a real runner, and the paper's argument names."""

import logging

import pytest
import torch
from torch.utils.data import DataLoader

from switch_ema import SwitchEMA, linear_warmup
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
)

mmengine = pytest.importorskip("mmengine")
from mmengine.evaluator import BaseMetric, Evaluator  # noqa: E402
from mmengine.model import BaseModel  # noqa: E402
from mmengine.runner import Runner  # noqa: E402

from switch_ema.integrations.mmengine import AveragerHook, SwitchEMAHook  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


class Model(BaseModel):
    def __init__(self, fails=False):
        super().__init__()
        self.net, self.fails, self.seen = network(), fails, []

    def forward(self, x, y, mode="tensor"):
        if mode == "loss":
            return {"loss": loss_of(self.net, (x, y))}
        if self.fails:
            raise Interrupted
        self.seen.append(self.net[0].weight.detach().clone())
        return [0]


class Nothing(BaseMetric):
    def process(self, data_batch, data_samples):
        self.results.append(0)

    def compute_metrics(self, results):
        return {"nothing": 0}


def runner(folder, hook, model=None, epochs=EPOCHS, validate=False, **options):
    model = model or Model()
    evaluation = {
        "val_dataloader": DataLoader(loader().dataset, 16),
        "val_cfg": {},
        "val_evaluator": Evaluator(Nothing()),
    }
    return Runner(
        model,
        str(folder),
        train_dataloader=DataLoader(loader().dataset, 16),
        train_cfg={"by_epoch": True, "max_epochs": epochs},
        optim_wrapper={"optimizer": adam(model.net)},
        custom_hooks=[hook],
        log_level=logging.ERROR,
        experiment_name=str(folder / options.pop("name", "run")),
        **(evaluation if validate else {}),
        **options,
    )


def test_equals_the_plain_loop(tmp_path):
    hook = AveragerHook(**OPTIONS)
    runner(tmp_path, hook).train()
    assert_agree(hook.averager, plain(), "net.")


def test_hooks_can_be_named_in_a_config(tmp_path):
    run = runner(tmp_path, {"type": "AveragerHook", "method": "ema", "decay": 0.9})
    run.train()
    (hook,) = [hook for hook in run.hooks if isinstance(hook, AveragerHook)]
    assert_agree(hook.averager, plain("ema"), "net.")


def test_validation_sees_the_average_and_leaves_the_live_weights(tmp_path):
    hook, model = AveragerHook("ema", **OPTIONS), Model()
    runner(tmp_path, hook, model, validate=True).train()
    averaged = hook.averager.averaged_state_dict()["net.0.weight"]
    assert torch.equal(model.seen[-1], averaged)
    assert_same(dict(model.state_dict()), hook.averager.live_state_dict())
    assert not torch.equal(averaged, model.net[0].weight)


def test_a_failing_validation_restores_the_live_weights(tmp_path):
    model = Model(fails=True)
    hook = AveragerHook("ema", **OPTIONS)
    with pytest.raises(Interrupted):
        runner(tmp_path, hook, model, validate=True).train()
    live = plain("ema", epochs=1).live_state_dict()
    assert_close(model.net.state_dict(), live)


def test_resuming_is_bit_for_bit_and_checkpoints_hold_the_average(
    tmp_path, monkeypatch
):
    # MMEngine 0.10 saves objects of its own, which torch 2.6 and later refuse.
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    whole, model = AveragerHook(**OPTIONS), Model()
    runner(tmp_path / "whole", whole, model).train()
    path = str(tmp_path / "whole" / "epoch_1.pth")
    saved = torch.load(path, weights_only=False)
    reference = plain(epochs=1)
    assert_close(saved["state_dict"], reference.averaged_state_dict(), "net.")

    again, resumed = AveragerHook(**OPTIONS), Model()
    folder = tmp_path / "again"
    runner(folder, again, resumed, load_from=path, resume=True).train()
    assert again.averager.steps == EPOCHS * STEPS
    first, second = whole.averager, again.averager
    assert_same(first.averaged_state_dict(), second.averaged_state_dict())
    assert_same(dict(model.state_dict()), dict(resumed.state_dict()))


def test_the_papers_names_give_the_papers_method(tmp_path):
    hook = SwitchEMAHook(
        momentum=0.9,
        warmup="linear",
        warmup_iters=6,
        warmup_ratio=0.5,
        switch_params=True,
        switch_by_iter=False,
        switch_start=1,
        switch_interval=1,
    )
    runner(tmp_path, hook).train()
    model = network()
    optimizer = adam(model)
    decay = linear_warmup(0.9, steps=6, ratio=0.5)
    sema = SwitchEMA(model, optimizer, decay=decay, switch_start=1, buffers="copy")
    for _ in range(EPOCHS):
        for batch in loader():
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
        sema.end_epoch()
    assert_agree(hook.averager, sema, "net.")
    assert hook.averager.switches == EPOCHS - 1


@pytest.mark.parametrize(
    ("interval", "expected"), [(1, [1, 2, 3, 4, 5, 6]), (2, [2, 4, 6]), (5, [5])]
)
def test_the_inverted_condition_is_put_right(tmp_path, interval, expected):
    """The published hook switches at interval 1 never, and at 5 in all but the 5th."""
    hook = SwitchEMAHook(momentum=0.9, switch_interval=interval)
    epochs = []

    class Watch(mmengine.hooks.Hook):
        switches = 0
        priority = "LOW"

        def after_train_epoch(self, runner):
            if hook.averager.switches > self.switches:
                epochs.append(runner.epoch + 1)
            self.switches = hook.averager.switches

    run = runner(tmp_path, hook, epochs=6)
    run.register_hook(Watch())
    run.train()
    assert epochs == expected


def test_update_interval_keeps_the_hooks_momentum(tmp_path):
    hook = SwitchEMAHook(momentum=0.9, update_interval=2, switch_params=False)
    runner(tmp_path, hook, epochs=1).train()
    model = network()
    optimizer = adam(model)
    shadow = model[0].weight.detach().clone()
    for i, batch in enumerate(loader(), start=1):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
        if i % 2 == 0:
            shadow.lerp_(model[0].weight.detach(), 0.1)
    averaged = hook.averager.averaged_state_dict()["net.0.weight"]
    torch.testing.assert_close(averaged, shadow, rtol=0, atol=1e-6)


def test_bad_values_are_refused_at_once():
    with pytest.raises(ValueError, match="warmup must be"):
        SwitchEMAHook(warmup="cosine", warmup_iters=3)
    with pytest.raises(ValueError, match="switch_interval"):
        SwitchEMAHook(switch_interval=0)
