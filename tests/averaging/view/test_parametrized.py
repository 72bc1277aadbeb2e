"""Parametrizations that are removed while the average is shown."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize
from torch.nn.utils.parametrize import remove_parametrizations

from switch_ema import EMA, SwitchEMA, constant
from tests.averaging.helpers import nudge

pytestmark = pytest.mark.usefixtures("arithmetic")

KINDS = [
    (parametrizations.weight_norm, True),
    (parametrizations.spectral_norm, True),
    (parametrizations.spectral_norm, False),
    (parametrizations.orthogonal, True),
]


def averaged_model(kind, **options):
    torch.manual_seed(0)
    model = nn.Sequential(kind(nn.Linear(4, 4)), nn.Linear(4, 2)).eval()
    ema = EMA(model, decay=constant(0.5), **options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter)
    ema.update()
    return model, ema


@pytest.mark.parametrize("options", [{}, {"flat": True}, {"dtype": torch.bfloat16}])
@pytest.mark.parametrize(("kind", "leave"), KINDS)
def test_the_live_weights_come_back_without_their_parametrization(kind, leave, options):
    model, ema = averaged_model(kind, **options)
    expected, _ = averaged_model(kind, **options)
    remove_parametrizations(expected[0], "weight", leave_parametrized=leave)
    with ema.averaged():
        remove_parametrizations(model[0], "weight", leave_parametrized=leave)
        assert not torch.allclose(model[0].weight, expected[0].weight)
    for name, tensor in expected.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], tensor, msg=name)
    with pytest.raises(RuntimeError, match=r"new: 0\.weight; gone: 0\.parametri"):
        ema.update()
    ema.refresh()
    ema.update()
    with ema.averaged():
        pass
    torch.testing.assert_close(model[0].weight, expected[0].weight)


def test_parametrizations_that_stay_are_left_alone():
    model, ema = averaged_model(parametrizations.weight_norm)
    live = copy.deepcopy(model.state_dict())
    with ema.averaged(), ema.averaged():
        assert not torch.equal(
            model.state_dict()["0.parametrizations.weight.original1"],
            live["0.parametrizations.weight.original1"],
        )
    for name, tensor in live.items():
        assert torch.equal(model.state_dict()[name], tensor)


def test_what_is_copied_stays_averaged_and_what_is_not_turns_live():
    """The documented difference between state dicts, copies and exported programs."""
    model, ema = averaged_model(parametrizations.weight_norm)
    x = torch.ones(2, 4)
    with ema.averaged():
        average = model(x).detach()
        state = model.state_dict()
        exported = torch.export.export(ema.averaged_copy(), (x,)).module()
    live = model(x).detach()
    assert torch.equal(state["1.weight"], model[1].weight)
    kept = ema.averaged_state_dict()
    assert not torch.equal(kept["1.weight"], model[1].weight)
    torch.testing.assert_close(exported(x), average)
    assert not torch.allclose(live, average)


def test_a_cached_weight_is_computed_from_what_is_shown():
    model = parametrizations.weight_norm(nn.Linear(2, 2))
    sema = SwitchEMA(model, decay=constant(0.5))
    nudge(model)
    sema.update()
    live, x = model(torch.ones(1, 2)), torch.ones(1, 2)
    with sema.averaged():
        average = model(x)
    assert not torch.equal(average, live)
    with parametrize.cached():
        assert torch.equal(model(x), live)
        with sema.averaged():
            assert torch.equal(model(x), average)
        assert torch.equal(model(x), live)
        sema.switch()
        assert torch.equal(model(x), average)
