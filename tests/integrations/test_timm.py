"""The drop-in for ModelEmaV3, in a loop that calls it as timm's script does."""

import copy
import runpy
import sys
import textwrap
import warnings

import pytest
import torch

from switch_ema import Steps, power_warmup
from switch_ema.bench.logs.reading import read_log
from switch_ema.integrations.best import BestBy
from tests.averaging.helpers import assert_same
from tests.integrations.helpers import (
    EPOCHS,
    SCORES,
    STEPS,
    adam,
    assert_close,
    loader,
    loss_of,
    network,
    plain,
)

pytest.importorskip("timm")
import timm.task.task
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
    install = "switch_ema.integrations.timm.install"
    monkeypatch.setattr(install, lambda **options: lambda: None)
    monkeypatch.setattr(sys, "argv", sys.argv)
    script = tmp_path / "train.py"
    script.write_text("")
    with pytest.warns(UserWarning, match="force-cpu.*there will be no switch"):
        main([str(script), "--model-ema", "--model-ema-force-cpu"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        main([str(script), "--model-ema"])


def test_timms_script_makes_the_drop_in_without_a_patch(tmp_path, monkeypatch, capsys):
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
    keep_timm(monkeypatch)
    options = ["--switch-every", "2", str(script), "--model-ema", "--lr", "1"]
    monkeypatch.setattr(sys, "argv", ["timm", *options])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # it is imported already
        runpy.run_module("switch_ema.integrations.timm", run_name="__main__")
    assert capsys.readouterr().out.split("\n")[0] == (
        "SwitchEmaV3 0.99 ['--model-ema', '--lr', '1']"
    )


PATCHED = [
    (timm.utils, "ModelEmaV3"),
    (timm.utils.model_ema, "ModelEmaV3"),
    (timm.task.task, "ModelEmaV3"),
    (timm.utils, "update_summary"),
    (timm.utils.summary, "update_summary"),
]


def keep_timm(monkeypatch):
    """Put back, at the end of a test, what the start through the module replaces."""
    for module, name in PATCHED:
        monkeypatch.setattr(module, name, getattr(module, name))


def test_the_best_average_is_kept_and_resumed():
    """In a script of one's own, which saves the best beside timm's state dicts."""
    by = BestBy("top1", higher_is_better=True, n=100)

    def new(seed=0):
        model = network(seed)
        options = {**WARMUP, "switch_every": 2, "best": by, "log_averaging": True}
        return model, adam(model), SwitchEmaV3(model, **options)

    def go_on(model, optimizer, ema, epochs):
        for epoch in epochs:
            train(model, ema, optimizer, [epoch])
            averages.append({k: v.clone() for k, v in ema.module.state_dict().items()})
            ema.note({"top1": SCORES[epoch]})
        return ema

    averages: list = []
    parts = new()
    go_on(*parts, range(1))
    model, optimizer, ema = parts
    states = [model, ema.module, optimizer, ema.best]
    saved = copy.deepcopy([one.state_dict() for one in states])
    whole = go_on(*parts, range(1, EPOCHS))
    assert_same(whole.best.averaged_state_dict(), averages[1])
    now = {k: v.clone() for k, v in whole.module.state_dict().items()}
    assert_same(now, averages[-1])

    model, optimizer, ema = new(seed=1)
    states = [model, ema.module, optimizer, ema.best]
    for one, state in zip(states, saved, strict=True):
        one.load_state_dict(state)
    again = go_on(model, optimizer, ema, range(1, EPOCHS))
    assert again.best.scores == list(SCORES)
    assert_same(again.best.averaged_state_dict(), averages[1])
    values = again.describe()
    assert values["averaging/switches"] == 1 and values["averaging/distance"] > 0
    reference = plain(decay=power_warmup(0.9), switch_every=2)
    kept = whole.describe()["averaging/kept_share"]
    assert kept == pytest.approx(reference.kept_share, rel=1e-6)


SCRIPT = """
import csv, sys
import torch
from timm import utils
from torch import nn

def validate(model, suffix=""):
    model.eval()
    return {"top1": 10 * model.module.weight.item() if suffix else 1.0}

start, end = int(sys.argv[1]), int(sys.argv[2])
model = nn.Linear(1, 1)
ema = utils.ModelEmaV3(model, decay=0.9)
nn.init.zeros_(ema.module.weight)
for epoch in range(start, end):
    with torch.no_grad():
        model.weight.fill_((3, 8, 1)[epoch])
        ema.module.weight.fill_((3, 8, 1)[epoch])
    ema.update(model, step=epoch + 1)
    measured = validate(model)
    measured = validate(ema, " (EMA)")
    utils.update_summary(epoch, {"loss": 0.5}, measured, "summary.csv",
                         write_header=epoch == 0)
"""


def test_the_summary_of_timms_script_has_both_curves_and_the_best_is_written(
    tmp_path, monkeypatch, recwarn
):
    """Also resumed after the first epoch, where the second had been scored."""
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    options = ["--evaluate", "both", "--log-averaging", "--best", "top1"]
    options += ["--best-examples", "100", "train.py"]
    for span in (["0", "2"], ["1", "3"]):
        with monkeypatch.context() as patch:
            keep_timm(patch)
            main([*options, *span])
    assert not [one for one in recwarn if "no state" in str(one.message)]
    found = read_log(tmp_path / "summary.csv")
    assert list(found["eval_top1"]) == pytest.approx([30, 80, 80, 10])
    assert list(found["eval_top1_live"]) == [1.0] * 4
    assert found["train_averaging/switches"][1] == 2
    best = torch.load(tmp_path / "best" / "average.pth.tar", weights_only=True)
    assert best["state_dict"]["weight"].item() == 8
    states = torch.load(tmp_path / "best" / "scores.pt", weights_only=True)
    assert states[-1]["best"]["scores"] == pytest.approx([0.3, 0.8, 0.1])


def test_the_best_needs_its_error(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["--best", "top1", "train.py"])
    assert "--best-examples or --best-error" in capsys.readouterr().err
