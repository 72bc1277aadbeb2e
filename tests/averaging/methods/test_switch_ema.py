"""SwitchEMA.switch() looks at the model first, as end_epoch() does."""

import pytest
import torch
from torch import nn

from switch_ema import SwitchEMA, constant
from tests.averaging.helpers import assert_same, copy_of, nudge


def test_a_switch_before_the_first_step_keeps_loaded_weights():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sema = SwitchEMA(model, optimizer, decay=constant(0.9))
    nudge(model)
    loaded = copy_of(model.state_dict())
    sema.switch()
    assert_same(model.state_dict(), loaded)


def test_a_switch_refuses_a_model_with_other_parameters():
    model = nn.Sequential(nn.Linear(2, 2))
    sema = SwitchEMA(model, decay=constant(0.9))
    nudge(model)
    sema.update()
    model.append(nn.Linear(2, 2))
    live = copy_of(model.state_dict())
    with pytest.raises(RuntimeError, match=r"call refresh\(\)"):
        sema.switch()
    assert_same(model.state_dict(), live)
    assert sema.switches == 0
