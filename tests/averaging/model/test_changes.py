"""What counts as a change of a model, and what does not."""

import gc

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from switch_ema import EMA, constant
from switch_ema.averaging.model import changes
from switch_ema.averaging.model.changes import watch


def counted(change) -> tuple[int, int]:
    """How many changes, and how many other buffers, a call makes."""
    watch.start()
    before, buffers = watch.changes, watch.buffers
    change()
    return watch.changes - before, watch.buffers - buffers


def watched() -> nn.Module:
    model = nn.Module()
    watch.add([model])
    return model


def test_other_buffers_are_counted_and_the_same_ones_are_not():
    model = watched()
    new = counted(lambda: model.register_buffer("steps", torch.zeros(())))
    assert new == (1, 1)
    assert counted(lambda: setattr(model, "steps", torch.ones(()))) == (0, 1)

    def count_in_place():
        model.steps += 1

    assert counted(count_in_place) == (0, 0)
    assert model.steps.item() == 2
    assert counted(lambda: setattr(model, "steps", None)) == (0, 1)
    assert counted(lambda: setattr(model, "steps", torch.ones(()))) == (1, 1)


def test_parameters_and_modules_of_averaged_models_are_counted():
    model = watched()
    weight = nn.Parameter(torch.zeros(2))
    assert counted(lambda: setattr(model, "weight", weight)) == (1, 0)
    assert counted(lambda: setattr(model, "weight", weight)) == (0, 0)
    inner = nn.Identity()
    assert counted(lambda: setattr(model, "inner", inner)) == (1, 0)
    assert counted(lambda: setattr(model, "inner", inner)) == (0, 0)


def test_modules_of_no_averaged_model_are_not_counted():
    layers = nn.ModuleList([nn.Linear(2, 2) for _ in range(3)])
    watch.add(layers.modules())
    assert counted(lambda: layers[:2]) == (0, 0)
    assert counted(lambda: nn.Linear(2, 2)) == (0, 0)
    assert counted(lambda: nn.CrossEntropyLoss(torch.ones(2))) == (0, 0)
    assert counted(lambda: layers.append(nn.Linear(2, 2))) == (1, 0)


def test_a_module_that_joins_a_model_is_counted_from_then_on():
    model = nn.Sequential(nn.Linear(2, 2))
    ema = EMA(model, decay=constant(0.5))
    head = nn.Linear(2, 2)
    model.append(head)
    with pytest.raises(RuntimeError, match=r"new: 1\.bias, 1\.weight"):
        ema.update()
    ema.refresh()
    head.extra = nn.Parameter(torch.zeros(2))
    with pytest.raises(RuntimeError, match=r"new: 1\.extra"):
        ema.update()


def test_watching_a_module_does_not_keep_it_alive():
    module = nn.Linear(2, 2)
    watch.add([module])
    address = id(module)
    assert address in watch._watched
    del module
    gc.collect()
    assert address not in watch._watched


class Sliced(nn.Module):
    """Makes modules in its forward pass, as many models of Transformers do."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 2) for _ in range(4)])

    def forward(self, x):
        for layer in self.layers[:3]:
            x = layer(x)
        return nn.Sequential(self.layers[3], nn.CrossEntropyLoss(torch.ones(2)))[0](x)


@pytest.mark.parametrize("compiles", [False, True])
def test_modules_made_in_forward_cost_no_walk_through_the_model(compiles, monkeypatch):
    torch._dynamo.reset()
    counters.clear()
    model, walks = Sliced(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    averagers = [EMA(model, optimizer), EMA(model)]
    real = changes.all_slots
    monkeypatch.setattr(
        changes, "all_slots", lambda *args: walks.append(args) or real(*args)
    )
    called = model
    if compiles:
        called = torch.compile(model, backend="eager")
    for _ in range(6):
        called(torch.ones(3, 2)).sum().backward()
        optimizer.step()
        averagers[1].update()
    assert [averager.steps for averager in averagers] == [6, 6]
    assert not walks
    if compiles:
        assert counters["stats"]["unique_graphs"] == 1


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
    ema = EMA(model, decay=constant(0.5), flat=flat, buffers="average")
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    average = 0.0
    for step in range(1, 12):
        compiled(torch.ones(3, 2))
        ema.update()
        average += (step - average) / 2
    assert counters["stats"]["unique_graphs"] == 1
    assert ema.averaged_state_dict()["seen"].tolist() == [average] * 2
