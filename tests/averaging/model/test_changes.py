"""What counts as a change of a model, and what does not."""

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from switch_ema import EMA, constant
from switch_ema.averaging.model.changes import watch


def counted(change) -> tuple[int, int]:
    """How many changes, and how many other buffers, a call makes."""
    watch.start()
    changes, buffers = watch.changes, watch.buffers
    change()
    return watch.changes - changes, watch.buffers - buffers


def test_other_buffers_are_counted_and_the_same_ones_are_not():
    model = nn.Module()
    new = counted(lambda: model.register_buffer("steps", torch.zeros(())))
    assert new == (1, 1)
    assert counted(lambda: setattr(model, "steps", torch.ones(()))) == (0, 1)

    def count_in_place():
        model.steps += 1

    assert counted(count_in_place) == (0, 0)
    assert model.steps.item() == 2
    assert counted(lambda: setattr(model, "steps", None)) == (0, 1)
    assert counted(lambda: setattr(model, "steps", torch.ones(()))) == (1, 1)


def test_parameters_and_modules_are_counted_wherever_they_are_assigned():
    model = nn.Module()
    weight = nn.Parameter(torch.zeros(2))
    assert counted(lambda: setattr(model, "weight", weight)) == (1, 0)
    inner = nn.Identity()
    assert counted(lambda: setattr(model, "inner", inner)) == (1, 0)
    assert counted(lambda: nn.Linear(2, 2)) == (2, 0)


def test_absent_buffers_are_no_change():
    """A loss that is made at every step registers its absent weights as a buffer."""
    assert counted(nn.CrossEntropyLoss) == (0, 0)


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.register_buffer("seen", torch.zeros(2))

    def forward(self, x):
        self.seen = self.seen + 1
        return self.layer(x)


@pytest.mark.parametrize("flat", [False, True])
def test_a_compiled_model_that_assigns_buffers_is_compiled_once(flat):
    """To read a count in the graph would make each step another one."""
    torch._dynamo.reset()
    counters.clear()
    model = Counting()
    ema = EMA(model, decay=constant(0.5), flat=flat)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    average = 0.0
    for step in range(1, 12):
        compiled(torch.ones(3, 2))
        ema.update()
        average += (step - average) / 2
    assert counters["stats"]["unique_graphs"] == 1
    assert ema.averaged_state_dict()["seen"].tolist() == [average] * 2
