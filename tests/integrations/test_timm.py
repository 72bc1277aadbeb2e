"""The drop-in for ModelEmaV3, in a loop that calls it as timm's script does."""

import subprocess
import sys
import textwrap
import warnings

import pytest
import torch

from switch_ema import Steps, power_warmup
from tests.averaging.helpers import assert_same
from tests.integrations.helpers import (
    EPOCHS,
    STEPS,
    adam,
    assert_close,
    loader,
    loss_of,
    network,
    plain,
)

pytest.importorskip("timm")
from timm.utils import ModelEmaV3, get_state_dict, unwrap_model

from switch_ema.integrations.timm import SwitchEmaV3, main

WARMUP = {"decay": 0.9, "use_warmup": True}


def validate(model):
    model.eval()
    with torch.no_grad():
        return [model(batch[0]) for batch in loader()]


def train(model, ema, optimizer, epochs=range(EPOCHS)):
    for epoch in epochs:
        updates = epoch * STEPS
        model.train()
        for batch in loader():
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
            updates += 1
            ema.update(model, step=updates)
        validate(model)
        validate(ema)


def drop_in(**options):
    model = network()
    optimizer = adam(model)
    ema = SwitchEmaV3(model, **(WARMUP | options))
    train(model, ema, optimizer)
    return model, ema


@pytest.mark.parametrize(
    "options",
    [{}, {"switch_every": 2}, {"switch_start": 1}, {"switch_every": Steps(3)}],
    ids=str,
)
def test_equals_the_plain_loop(options):
    model, ema = drop_in(**options)
    reference = plain(decay=power_warmup(0.9), **options)
    assert_close(get_state_dict(ema, unwrap_model), reference.averaged_state_dict())
    assert_close(model.state_dict(), reference.live_state_dict())
    assert ema.switches == reference.switches > 0


def test_without_a_switch_it_is_timms_own():
    _, ema = drop_in(switch_start=99)
    other = network()
    optimizer, peer = adam(other), ModelEmaV3(network(), **WARMUP)
    train(other, peer, optimizer)
    assert_same(dict(ema.module.state_dict()), dict(peer.module.state_dict()))


def test_resuming_as_timm_does_equals_the_whole_run():
    """timm saves both state dicts and no counter; the count of updates goes on."""
    options = {"switch_every": 2}
    whole, ema = drop_in(**options)

    model = network()
    optimizer, half = adam(model), SwitchEmaV3(model, **WARMUP, **options)
    train(model, half, optimizer, range(1))
    saved = model.state_dict(), half.module.state_dict(), optimizer.state_dict()

    model = network(seed=1)
    optimizer, resumed = adam(model), SwitchEmaV3(model, **WARMUP, **options)
    model.load_state_dict(saved[0])
    resumed.module.load_state_dict(saved[1])
    optimizer.load_state_dict(saved[2])
    train(model, resumed, optimizer, range(1, EPOCHS))
    assert_same(dict(whole.state_dict()), dict(model.state_dict()))
    assert_same(dict(ema.module.state_dict()), dict(resumed.module.state_dict()))


def test_set_and_bad_values():
    model = network()
    ema = SwitchEmaV3(network(seed=1), **WARMUP)
    ema.set(model)
    assert_same(dict(ema.module.state_dict()), dict(model.state_dict()))
    with pytest.raises(ValueError, match="switch_every"):
        SwitchEmaV3(model, switch_every=0)


def test_an_average_that_is_not_finite_is_not_written():
    model = network()
    ema = SwitchEmaV3(model, **WARMUP)
    with torch.no_grad():
        ema.module[3].bias[3] = float("nan")
    before = model[3].bias.detach().clone()
    with pytest.raises(FloatingPointError, match=r"3\.bias"):
        ema.switch()
    assert torch.equal(model[3].bias, before)


def test_an_average_on_the_cpu_is_never_switched_and_that_is_said(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("switch_ema.integrations.timm.install", lambda **options: None)
    monkeypatch.setattr(sys, "argv", sys.argv)
    script = tmp_path / "train.py"
    script.write_text("")
    with pytest.warns(UserWarning, match="force-cpu.*there will be no switch"):
        main([str(script), "--model-ema", "--model-ema-force-cpu"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        main([str(script), "--model-ema"])


def test_timms_script_makes_the_drop_in_without_a_patch(tmp_path):
    """A script that makes its EMA in both ways in which timm's does."""
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent(
            """
            import sys
            from timm import utils
            from timm.task.task import TrainingTask
            from torch import nn
            ema = utils.ModelEmaV3(nn.Linear(1, 1), decay=0.9)
            task = TrainingTask()
            task.trainable_module = nn.Linear(1, 1)
            ema = task.setup_ema(decay=0.99)
            print(type(ema).__mro__[1].__name__, ema.decay, sys.argv[1:])
            """
        )
    )
    module = [sys.executable, "-m", "switch_ema.integrations.timm"]
    command = [*module, "--switch-every", "2", str(script), "--model-ema", "--lr", "1"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split("\n")[0] == (
        "SwitchEmaV3 0.99 ['--model-ema', '--lr', '1']"
    )
