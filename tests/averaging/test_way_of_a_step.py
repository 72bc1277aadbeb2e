"""The way of one training step through the library: few files, private names in two."""

import re
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks

import switch_ema
from switch_ema import EMA, SwitchEMA
from switch_ema.averaging.step import forgotten_update

ROOT = Path(switch_ema.__file__).parent

PRIVATE = re.compile(
    r"torch\._(?!_version__)|_getframe|_cdata|_local_tensor|(?<!\w)_optimizer_step|_init_group|_NormBase"
    r"|\._modules|module\._parameters|module\._buffers|_disable_dynamo"
)
MAY_BE_PRIVATE = {"_torch.py", "kernels/torch_ops.py"}


@pytest.mark.parametrize("method", [EMA, SwitchEMA])
def test_a_step_passes_at_most_eight_files(method, monkeypatch):
    # Once this is imported, the call stack is asked whether it makes the step.
    checkpoints = "torch.distributed.checkpoint.state_dict"
    monkeypatch.delitem(sys.modules, checkpoints, raising=False)
    # Once an averager without an optimizer exists, all optimizers are followed.
    followed = forgotten_update._follow_all_optimizers()
    monkeypatch.delitem(_global_optimizer_post_hooks, followed.id)
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    averager = method(model, optimizer)
    files: set[str] = set()

    def watch(frame, event, argument):
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(ROOT):
            files.add(str(path.relative_to(ROOT)))

    for _ in range(3):  # the first steps compile and look at everything
        model(torch.ones(2, 3)).sum().backward()
        files.clear()
        sys.setprofile(watch)
        optimizer.step()
        sys.setprofile(None)
    assert averager.steps == 3
    assert {"averaging/step/hooks.py", "averaging/averager.py"} <= files
    # Follows all optimizers once any averager without one was made in this process.
    files.discard("averaging/step/forgotten_update.py")
    assert len(files) <= 8, " ".join(sorted(files))


def test_private_names_of_torch_are_in_two_files():
    averaging = ROOT / "averaging"
    users = {
        str(path.relative_to(averaging))
        for path in averaging.rglob("*.py")
        if PRIVATE.search(path.read_text())
    }
    assert users == MAY_BE_PRIVATE
