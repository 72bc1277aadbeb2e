"""What users of other libraries report, as tests that pass here.

The numbers are those of the reports; each docstring names the library that fails.
Where that library is at hand and it is cheap, the test shows the failure, too.
"""

import copy
import inspect

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

from switch_ema import EMA, SWA, SwitchEMA, constant, count_warmup
from tests.averaging.helpers import assert_same
from tests.integrations.helpers import (
    EPOCHS,
    STEPS,
    Interrupted,
    adam,
    loader,
    loss_of,
    network,
)


def train(model, optimizer, epochs=1, after_step=lambda: None, after_epoch=None):
    for _ in range(epochs):
        for batch in loader():
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
            after_step()
        if after_epoch is not None:
            after_epoch()


def test_1_models_that_cannot_be_copied():
    """pytorch#149138, Lightning#21414: AveragedModel deep-copies, which FSDP refuses.

    The same holds for a parametrised weight that was used; the shadow is tensors. The
    sharded case is test_lightning.py's, with two processes.
    """
    model = nn.Sequential(nn.Linear(64, 10))
    model[0] = nn.utils.weight_norm(model[0])
    optimizer = adam(model)
    ema = EMA(model, optimizer, decay=constant(0.9))
    train(model, optimizer)
    with ema.averaged():
        loss_of(model, next(iter(loader())))
    with pytest.raises(RuntimeError, match="deepcopy"):
        AveragedModel(model)


def test_2_resuming_keeps_the_count_of_updates():
    """lightly-train#892, yolov5#292: a reset counter restarts warm-up.

    timm's ModelEmaV3 has no counter in its state dict; whoever counts from zero again
    wipes the average at the first update.
    """
    model = network()
    optimizer = adam(model)
    ema = EMA(model, optimizer, decay=count_warmup(0.999))
    train(model, optimizer, epochs=5)
    again = EMA(model, decay=count_warmup(0.999))
    again.load_state_dict(ema.state_dict())
    assert again.steps == 5 * STEPS
    assert again.current_decay == ema.current_decay > 0.5

    timm = pytest.importorskip("timm.utils")
    peer = timm.ModelEmaV3(model, decay=0.999, use_warmup=True)
    assert not [name for name in peer.state_dict() if "step" in name]
    assert peer.get_decay(1) == 0.0


def test_3_checkpoints_written_during_validation_do_not_mix_weights():
    """schnetpack#785, nequip#590: the checkpoint has what the model holds just then."""
    model = network()
    optimizer = adam(model)
    ema = EMA(model, optimizer, decay=constant(0.9))
    train(model, optimizer)
    live, averaged = ema.live_state_dict(), ema.averaged_state_dict()
    with ema.averaged():
        assert_same(ema.live_state_dict(), live)
        assert_same(ema.averaged_state_dict(), averaged)
        state = ema.state_dict()
    resumed = EMA(model, decay=constant(0.9))
    resumed.load_state_dict(state)
    assert_same(resumed.averaged_state_dict(), averaged)
    assert_same(resumed.live_state_dict(), live)

    # torch_ema: inside its context, what is saved as the model is the average.
    torch_ema = pytest.importorskip("torch_ema")
    peer = torch_ema.ExponentialMovingAverage(model.parameters(), decay=0.9)
    train(model, optimizer, after_step=peer.update)
    live = copy.deepcopy(model.state_dict())
    with peer.average_parameters():
        assert not torch.equal(model.state_dict()["0.weight"], live["0.weight"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_4_half_precision_averages_move(dtype):
    """timm#1831: at decay 0.999 an update in half precision rounds away."""
    model = nn.Linear(64, 64, bias=False).to(dtype)
    nn.init.constant_(model.weight, 1.0)
    ema = EMA(model, decay=constant(0.999))
    peer = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
    peer.update_parameters(model)
    nn.init.constant_(model.weight, 2.0)
    for _ in range(100):
        ema.update()
        peer.update_parameters(model)
    expected = 2 - 0.999**100
    moved = ema.averaged_tensors()["weight"].mean().item()
    assert moved == pytest.approx(expected, abs=1e-3)
    if dtype == torch.bfloat16:
        assert peer.module.weight.mean().item() < 1 + (expected - 1) / 2


def test_5_before_the_first_update_the_live_weights_are_shown():
    """Lightning#21724: validation sees initial weights, and a run in which averaging
    never starts ends with them; test_lightning.py has both in a trainer."""
    model = network()
    swa = SWA(model, adam(model), start=99)
    trained = network(seed=1).state_dict()
    model.load_state_dict(trained)
    with swa.averaged():
        assert_same(dict(model.state_dict()), dict(trained))
    assert_same(swa.averaged_state_dict(), dict(trained))

    peer = AveragedModel(network())  # keeps what the model was when it was made
    assert not torch.equal(peer.module[0].weight, model[0].weight)


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(64)

    def forward(self, x, shift):
        return self.norm(x + shift)


def test_6_statistics_of_the_average_for_models_with_several_inputs():
    """timm#245, ignite#2590, pytorch#49082: update_bn passes one input only, and an
    exception leaves the layers without their momentum."""
    model = TwoInputs()
    ema = EMA(model)
    data = [(x, torch.ones(64)) for x, _ in loader()]
    ema.recalibrate(data, call=lambda model, batch: model(*batch))
    with ema.averaged():
        mean = torch.cat([x for x, _ in loader()]).mean(0) + 1
        torch.testing.assert_close(model.norm.running_mean, mean)
    with pytest.raises(TypeError):
        ema.recalibrate(data)
    assert model.norm.momentum == 0.1

    peer = TwoInputs()
    with pytest.raises(TypeError):
        update_bn(data, peer)
    assert peer.norm.momentum is None


def test_7_one_update_per_optimizer_step_under_accumulation():
    """F5-TTS#631: the average is stepped per micro-batch. Keras does so, too."""
    model = network()
    optimizer = adam(model)
    ema = EMA(model, optimizer, decay=constant(0.9))
    for i, batch in enumerate(loader(), start=1):
        (loss_of(model, batch) / 2).backward()
        if i % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()
    assert ema.steps == STEPS // 2


def test_8_an_update_does_not_walk_through_the_modules(monkeypatch):
    """WeatherGenerator#2520: a tenth of the step goes into the average.

    Peers lose it in walks through modules and state dicts at every update; the speed
    itself is measured by ``make bench``.
    """
    model = network()
    ema = EMA(model, decay=constant(0.9))
    peer = AveragedModel(model)
    ema.update()  # looks once, since modules were made in this process
    walks = []
    original = nn.Module.named_modules

    def counted(self, *args, **kwargs):
        walks.append(self)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(nn.Module, "named_modules", counted)
    ema.update()
    assert not walks
    peer.update_parameters(model)
    assert walks


def test_9_no_call_to_update_and_no_steps_per_epoch():
    """ema-pytorch#40, Westlake-AI/SEMA#3: is update() called as well as the switch, and
    how many steps has an epoch? ema-pytorch counts in steps only."""
    model = network()
    optimizer = adam(model)
    sema = SwitchEMA(model, optimizer, decay=constant(0.9))
    train(model, optimizer, EPOCHS, after_epoch=sema.end_epoch)
    assert (sema.steps, sema.switches) == (EPOCHS * STEPS, EPOCHS)
    assert_same(sema.live_state_dict(), sema.averaged_state_dict())
    with pytest.warns(UserWarning, match="counts steps twice"):
        sema.update()

    ema_pytorch = pytest.importorskip("ema_pytorch")
    names = inspect.signature(ema_pytorch.EMA.__init__).parameters
    assert "update_model_with_ema_every" in names
    assert not [name for name in names if "epoch" in name]


def test_10_an_exception_in_validation_restores_the_live_weights():
    """Lightning's own callback leaves the average in the model; test_lightning.py
    shows that. Each trainer's test here has the case for its integration."""
    model = network()
    optimizer = adam(model)
    ema = EMA(model, optimizer, decay=constant(0.9))
    train(model, optimizer)
    live = copy.deepcopy(dict(model.state_dict()))
    with pytest.raises(Interrupted), ema.averaged():
        raise Interrupted
    assert_same(dict(model.state_dict()), live)
