"""TorchScript modules, alone and inside other models."""

import pytest
import torch
from torch import nn

from switch_ema import EMA, SwitchEMA, constant
from tests.averaging.helpers import assert_same, copy_of, nudge

pytestmark = [
    pytest.mark.usefixtures("arithmetic"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning"),
]


def plain():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def wrapped(module):
    torch.manual_seed(1)
    return nn.Sequential(module, nn.Linear(2, 2))


FORMS = {
    "scripted": lambda: torch.jit.script(plain()),
    "traced": lambda: torch.jit.trace(plain().eval(), torch.ones(2, 3)),
    "inside": lambda: wrapped(torch.jit.script(plain())),
}


@pytest.fixture(params=FORMS)
def model(request):
    return FORMS[request.param]()


def train(model, averager_of, steps=3):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    averager = averager_of(model, optimizer)
    generator = torch.Generator().manual_seed(2)
    for _ in range(steps):
        model(torch.randn(5, 3, generator=generator)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return averager


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("form", ["scripted", "inside"])
def test_its_average_is_that_of_the_same_python_modules(form, flat):
    def averager_of(model, optimizer):
        return SwitchEMA(model, optimizer, decay=constant(0.5), flat=flat)

    model = FORMS[form]()
    twin = wrapped(plain()) if form == "inside" else plain()
    ours, theirs = train(model, averager_of), train(twin, averager_of)
    average, expected = ours.averaged_state_dict(), theirs.averaged_state_dict()
    assert list(average) == list(expected)
    for name, tensor in expected.items():
        torch.testing.assert_close(average[name], tensor)
    state = ours.state_dict()
    assert ours.end_epoch()
    assert_same(copy_of(model.state_dict()), ours.averaged_state_dict())
    ours.load_state_dict(state)


def test_the_live_weights_come_back(model):
    ema = train(model, lambda m, o: EMA(m, o, decay=constant(0.5)))
    live, average = copy_of(model.state_dict()), ema.averaged_state_dict()
    x = torch.ones(2, 3)
    outside = model.eval()(x)
    with ema.averaged():
        assert_same(copy_of(model.state_dict()), average)
        assert not torch.equal(model(x), outside)
    assert_same(copy_of(model.state_dict()), live)
    assert torch.equal(model(x), outside)


def test_a_cast_is_followed(model):
    ema = train(model, lambda m, o: EMA(m, o, decay=constant(0.5)))
    model.double()
    ema.detach()
    nudge(model)
    ema.update()
    assert {t.dtype for t in ema.averaged_tensors().values()} == {
        torch.float64,
        torch.int64,
    }


def test_without_an_optimizer_what_is_loaded_into_a_part_is_followed():
    model = FORMS["inside"]()
    ema = EMA(model, decay=constant(0.5))
    loaded = {name: torch.ones_like(t) for name, t in model.state_dict().items()}
    model.load_state_dict(loaded)
    nudge(model)
    ema.update()
    average = ema.averaged_state_dict()["0.0.weight"]
    assert torch.equal(average, torch.full_like(average, 1.5))


def test_what_torchscript_cannot_do_is_said():
    ema = EMA(FORMS["scripted"]())
    with pytest.raises(TypeError, match=r"inside averaged\(\)"):
        ema.call(torch.ones(2, 3))
    ema.update()
    with pytest.raises(TypeError, match="recalibrate before scripting"):
        ema.recalibrate([torch.ones(2, 3)])


@pytest.mark.parametrize("empty", [nn.ReLU(), nn.Sequential(nn.Flatten())])
def test_a_model_without_tensors_is_refused(empty):
    with pytest.raises(ValueError, match="model must have tensors to average"):
        EMA(empty)
