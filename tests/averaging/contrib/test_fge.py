"""The cycle of the learning rate against the paper's formula."""

import pytest
import torch

from switch_ema import LAWA
from switch_ema.contrib import CyclicRate, MidCycle
from tests.averaging.helpers import scalar_model


def rate(i, c, high, low):
    """Garipov et al., equation 3, with i = 1 at the first step."""
    t = ((i - 1) % c + 1) / c
    if t <= 0.5:
        return (1 - 2 * t) * high + 2 * t * low
    return (2 - 2 * t) * low + (2 * t - 1) * high


def test_snapshots_are_taken_where_the_rate_is_lowest():
    model = scalar_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=9.0)
    schedule = CyclicRate(optimizer, steps=6, high=0.5, low=0.1)
    lawa = LAWA(model, optimizer, k=9, every=MidCycle(6))
    rates, counts = [], []
    for _ in range(20):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
        counts.append(lawa.averaged_models)
    assert rates == pytest.approx([rate(i, 6, 0.5, 0.1) for i in range(1, 21)])
    taken = [i for i in range(1, 20) if counts[i] > counts[i - 1]]
    assert [rates[i] for i in taken] == pytest.approx([0.1] * 3)


def test_a_cycle_resumes_where_it_was():
    model = scalar_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=9.0)
    schedule = CyclicRate(optimizer, steps=6, high=0.5, low=0.1)
    for _ in range(4):
        optimizer.step()
        schedule.step()
    other = torch.optim.SGD(model.parameters(), lr=9.0)
    resumed = CyclicRate(other, steps=6, high=0.5, low=0.1)
    resumed.load_state_dict(schedule.state_dict())
    other.load_state_dict(optimizer.state_dict())
    for _ in range(5):
        for one, its in ((optimizer, schedule), (other, resumed)):
            one.step()
            its.step()
        assert optimizer.param_groups[0]["lr"] == other.param_groups[0]["lr"]


def test_odd_cycles_have_no_middle():
    with pytest.raises(ValueError, match="even number, got 5"):
        MidCycle(5)
