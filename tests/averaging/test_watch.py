"""What counts as a change of a model, and what does not."""

import torch
from torch import nn

from switch_ema.averaging.watch import watch


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
