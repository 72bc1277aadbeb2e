"""Switches where the optimizer keeps float32 copies of a model in half precision."""

import pytest
import torch

from switch_ema import Steps, SwitchEMA, constant
from tests.averaging.programs.master_weights import Training


def test_a_switch_that_the_next_step_undoes_is_told():
    training = Training()
    sema = SwitchEMA(training.model, decay=constant(0.95))
    for _ in range(40):
        training.step()
        sema.update()
    assert sema.end_epoch()
    training.step()
    with pytest.raises(RuntimeError, match=r"undid the switch: .* nn\.ParameterList"):
        sema.update()


def test_the_float32_copies_can_be_averaged_and_switched():
    training = Training()
    sema = SwitchEMA(training.masters, training.optimizer, decay=constant(0.9))
    for _ in range(3):
        for _ in range(20):
            training.step()
        assert sema.end_epoch()
        average = [tensor.clone() for tensor in sema.averaged_tensors().values()]
        live = [p.detach().clone() for p in training.masters]
        assert all(map(torch.equal, live, average))
        training.write_model()
        halves = [p.detach() for p in training.model.parameters()]
        assert all(
            torch.equal(h, a.bfloat16()) for h, a in zip(halves, average, strict=True)
        )


@pytest.mark.filterwarnings("ignore:This switch keeps")
@pytest.mark.parametrize("decay", [0.6, 0.9, 0.99])
@pytest.mark.parametrize("interval", [1, 2, 20])
def test_a_switch_that_stays_is_not_complained_about(interval, decay):
    """Steps of one batch all point the same way, from the average to the weights."""
    model = Training().model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    every = Steps(interval)
    sema = SwitchEMA(model, decay=constant(decay), switch_every=every)
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(1)).bfloat16()
    for _ in range(60):
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        sema.update()
    assert sema.switches == 60 // interval
