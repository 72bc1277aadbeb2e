"""Lightning Fabric and the wrappers that Lightning puts around optimizers."""

import pytest
import torch

pytest.importorskip("lightning")
from lightning.fabric import Fabric
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import nn

from switch_ema import SwitchEMA, create_averager, unwrap
from tests.averaging.distributed.processes import run
from tests.integrations.helpers import (
    EPOCHS,
    OPTIONS,
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


def train(fabric, model, optimizer, averager, data, epochs=EPOCHS):
    for _ in range(epochs):
        for batch in data:
            fabric.backward(loss_of(model, batch))
            optimizer.step()
            optimizer.zero_grad()
        averager.end_epoch()


@pytest.mark.parametrize("is_set_up_first", [False, True])
@pytest.mark.parametrize("method", ["ema", "switch-ema"])
def test_fabric_trains_as_the_plain_loop_does(method, is_set_up_first):
    fabric, model = Fabric(accelerator="cpu", devices=1), network()
    optimizer = adam(model)
    wrapped, stepped = fabric.setup(model, optimizer)
    if is_set_up_first:
        averager = create_averager(method, wrapped, stepped, **OPTIONS)
    else:
        averager = create_averager(method, model, optimizer, **OPTIONS)
    train(fabric, wrapped, stepped, averager, loader())
    assert_agree(averager, plain(method))
    assert averager.state_dict()["shadow"].keys() == model.state_dict().keys()


def test_fabric_saves_and_loads_an_averager(tmp_path):
    path = tmp_path / "state.ckpt"

    def begin():
        fabric, model = Fabric(accelerator="cpu", devices=1), network()
        model, optimizer = fabric.setup(model, adam(model))
        sema = SwitchEMA(model, optimizer, **OPTIONS)
        return fabric, {"model": model, "optimizer": optimizer, "sema": sema}

    fabric, state = begin()
    train(fabric, *state.values(), loader(), epochs=1)
    fabric.save(path, state)
    fabric, state = begin()
    fabric.load(path, state)
    train(fabric, *state.values(), loader(), epochs=EPOCHS - 1)
    assert_agree(state["sema"], plain())


def on_two_processes():
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    model = small_network()
    model, optimizer = fabric.setup(model, sgd(model))
    sema = SwitchEMA(model, optimizer, **OPTIONS)
    data = [[p.chunk(2)[fabric.global_rank] for p in batch] for batch in loader(32)]
    train(fabric, model, optimizer, sema, data)
    inner = type(model._forward_module).__name__
    return inner, sema.averaged_state_dict(), sema.steps, sema.switches


def test_two_processes_equal_one():
    reference = plain(batch=32, model=small_network(), make_optimizer=sgd)
    for inner, averaged, steps, switches in run(2, on_two_processes):
        assert inner == "DistributedDataParallel"
        assert (steps, switches) == (reference.steps, EPOCHS)
        assert_close(averaged, reference.averaged_state_dict())


def test_the_wrapper_of_lightning_is_the_optimizer_inside():
    model = nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sema = SwitchEMA(model, LightningOptimizer(optimizer))
    for batch in loader():
        loss_of(model, batch).backward()
        optimizer.step()
    assert sema.steps == len(loader())
    # torch wraps a step to run hooks; the wrapper's own must stay as it is.
    assert not hasattr(LightningOptimizer.step, "hooked")


def test_a_model_with_a_child_of_that_name_is_no_wrapper():
    model = nn.Module()
    model._forward_module, model.head = nn.Linear(2, 2), nn.Linear(2, 2)
    assert unwrap(model) is model
    names = SwitchEMA(model).state_dict()["shadow"].keys()
    assert names == dict(model.named_parameters()).keys()
