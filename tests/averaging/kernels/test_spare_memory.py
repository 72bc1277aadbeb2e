"""Memory that stays in place between uses."""

import copy
import sys

import pytest
import torch
from torch import nn

from switch_ema import EMA
from switch_ema.averaging.kernels import native, spare_memory
from switch_ema.averaging.kernels.spare_memory import SpareMemory

linux = sys.platform == "linux"


@pytest.fixture(autouse=True)
def no_block_is_too_small(monkeypatch):
    monkeypatch.setattr(spare_memory, "_LEAST", 0)


def test_a_block_is_used_again():
    spare = SpareMemory()
    first = spare.take(5000).fill_(7)
    assert torch.equal(first, torch.full((5000,), 7, dtype=torch.int16))
    spare.give_back()
    second = spare.take(3000).fill_(8)
    assert (second.data_ptr() == first.data_ptr()) == linux
    assert torch.equal(second, torch.full((3000,), 8, dtype=torch.int16))


def test_a_larger_block_replaces_a_smaller_one_still_in_use():
    spare = SpareMemory()
    small = spare.take(1000).fill_(1)
    large = spare.take(100_000).fill_(2)
    assert small.sum() == 1000 and large.sum() == 200_000


def test_small_blocks_come_from_the_allocator(monkeypatch):
    monkeypatch.setattr(spare_memory, "_LEAST", 1 << 24)
    spare = SpareMemory()
    spare.take(1000)
    spare.give_back()
    assert spare._block is None


@pytest.mark.parametrize("times", [1, 3])
def test_weights_come_back_bit_for_bit_from_spare_memory(times):
    torch.manual_seed(0)
    model = nn.Linear(300, 200)
    ema = EMA(model, decay=0.5, dtype=torch.bfloat16)
    for _ in range(times):
        with torch.no_grad():
            model.weight += torch.randn_like(model.weight)
        ema.update()
        live = model.weight.detach().clone()
        average = ema.averaged_state_dict()["weight"]
        with ema.averaged():
            assert torch.equal(model.weight, average)
        assert torch.equal(model.weight, live)
        assert torch.equal(ema.averaged_state_dict()["weight"], average)


def test_the_pages_are_marked_as_free_after_each_view(monkeypatch):
    given = []
    give_back = SpareMemory.give_back
    monkeypatch.setattr(
        SpareMemory, "give_back", lambda self: (given.append(1), give_back(self))
    )
    ema = EMA(nn.Linear(300, 200), dtype=torch.bfloat16)
    with ema.averaged():
        assert not given
    assert bool(given) == native.is_available()  # torch's kernels need none


def test_an_averager_with_spare_memory_can_be_copied():
    ema = EMA(nn.Linear(300, 200), dtype=torch.bfloat16)
    with ema.averaged():
        pass
    other = copy.deepcopy(ema)
    with other.averaged():
        pass
