"""The argument names of the hook published with the paper, with the right condition."""

import pytest
import torch

from switch_ema import linear_warmup
from tests.integrations.helpers import (
    EPOCHS,
    adam,
    assert_agree,
    loader,
    loss_of,
    network,
    plain,
)

mmengine = pytest.importorskip("mmengine")
from switch_ema.integrations.mmengine import SwitchEMAHook  # noqa: E402
from tests.integrations.mmengine_runs import runner  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


def test_the_papers_names_give_the_papers_method(tmp_path):
    hook = SwitchEMAHook(
        momentum=0.9,
        resume_from=None,
        warmup="linear",
        warmup_iters=6,
        warmup_ratio=0.5,
        update_interval=1,
        switch_params=True,
        switch_by_iter=False,
        switch_start=1,
        switch_end=None,
        switch_interval=1,
    )
    runner(tmp_path, hook).train()
    decay = linear_warmup(0.9, steps=6, ratio=0.5)
    sema = plain(decay=decay, switch_start=1, buffers="copy")
    assert_agree(hook.averager, sema, "net.")
    assert hook.averager.switches == EPOCHS - 1


@pytest.mark.parametrize(("start", "stop"), [(0, None), (3, None), (3, 9)])
def test_the_papers_names_by_iteration(tmp_path, start, stop):
    """At every third of 12 steps: the published condition takes all the others."""
    hook = SwitchEMAHook(
        momentum=0.9,
        switch_by_iter=True,
        switch_start=start,
        switch_end=stop,
        switch_interval=3,
    )
    steps = []
    run = runner(tmp_path, hook)

    class Watch(mmengine.hooks.Hook):
        switches = 0

        def after_train_iter(self, runner, *args, **kwargs):
            if hook.averager.switches > self.switches:
                steps.append(runner.iter + 1)
            self.switches = hook.averager.switches

    run.register_hook(Watch())
    run.train()
    due = [step for step in (3, 6, 9, 12) if start < step <= (stop or 12)]
    assert steps == due


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
    hook = SwitchEMAHook(
        momentum=0.9, warmup=None, update_interval=2, switch_params=False
    )
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
    with pytest.raises(ValueError, match="resume_from must be None, got 'last'"):
        SwitchEMAHook(resume_from="last")
