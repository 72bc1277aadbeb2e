"""Buffers that get another shape in training, in evaluation, or go."""

import pytest
import torch
from torch import nn

from switch_ema import EMA, LAWA, SwitchEMA, constant
from tests.averaging.helpers import assert_same, copy_of, nudge
from tests.averaging.programs import growing_positions as program

pytestmark = pytest.mark.usefixtures("arithmetic")

OPTIONS = [
    {},
    {"buffers": "copy"},
    {"buffers": "average"},
    {"buffers": "average", "flat": True},
    {"buffers": "average", "dtype": torch.bfloat16},
]


def trained(lengths=(4, 5), **options):
    torch.manual_seed(0)
    model = program.Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ema = EMA(model, optimizer, decay=constant(0.5), **options)
    program.train(model, optimizer, list(lengths))
    return model, optimizer, ema


def parameters(model):
    return copy_of(dict(model.named_parameters()))


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("cast", [torch.float32, torch.bfloat16])
def test_a_longer_sentence_in_evaluation_leaves_the_live_weights(options, cast):
    model, optimizer, ema = trained(**options)
    model.to(cast)
    live, average = parameters(model), ema.averaged_state_dict()
    with ema.averaged():
        model.eval()(program.sentences(9))
        inside = ema.live_state_dict()
        assert_same({name: inside[name] for name in live}, live)
        assert_same(
            {name: dict(model.named_parameters())[name] for name in live},
            {name: average[name] for name in live},
        )
    assert_same(parameters(model), live)
    assert len(model.mask) == len(model.positions.table) == 9
    assert ema.state_dict()["shadow"]["mask"].shape == (9, 9)
    assert len(ema.averaged_tensors()["positions.table"]) == 9
    again = ema.averaged_state_dict()
    assert_same(
        {name: again[name] for name in live}, {name: average[name] for name in live}
    )
    program.train(model.float(), optimizer, [4])


def test_a_longer_sentence_and_an_exception_leave_the_live_weights():
    model, _, ema = trained()
    live = parameters(model)
    with pytest.raises(ZeroDivisionError), ema.averaged():
        model(program.sentences(9))
        raise ZeroDivisionError
    assert_same(parameters(model), live)


def test_a_buffer_that_grows_in_inference_mode_can_be_shown_again():
    model, optimizer, ema = trained()
    live = parameters(model)
    for length in (9, 12):
        with ema.averaged(), torch.inference_mode():
            model.eval()(program.sentences(length))
        assert_same(parameters(model), live)
    with torch.inference_mode(), ema.averaged():
        model(program.sentences(15))
    assert_same(parameters(model), live)
    program.train(model, optimizer, [4])
    assert ema.averaged_state_dict()["mask"].shape == (15, 15)


@pytest.mark.parametrize("options", OPTIONS)
def test_longer_sentences_in_training_are_followed_wherever_the_average_is_read(
    options,
):
    model, optimizer, ema = trained(**options)
    program.train(model, optimizer, [7])
    state = ema.state_dict()
    assert torch.equal(state["shadow"]["mask"], model.mask)
    program.train(model, optimizer, [8])
    assert ema.call(program.sentences(10)).shape == (3, 10, program.WORDS)
    program.train(model, optimizer, [9])
    assert torch.equal(ema.averaged_tensors()["longest"], torch.arange(8))
    program.train(model, optimizer, [10])
    with ema.averaged():
        assert torch.equal(model.longest, torch.arange(9))
    ema.load_state_dict(ema.state_dict())


@pytest.mark.parametrize("buffers", ["average", "copy"])
def test_longer_sentences_are_averaged_over_epochs(buffers):
    model = program.Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    averager = LAWA(model, optimizer, k=2, buffers=buffers)
    for length in (4, 7, 5, 9):
        program.train(model, optimizer, [length])
        averager.end_epoch()
    assert torch.equal(averager.averaged_state_dict()["longest"], torch.arange(8))
    assert len([model(program.sentences(12)) for model in averager.members()]) == 2
    averager.load_state_dict(averager.state_dict())


@pytest.mark.parametrize("looks", [0, 1])
def test_a_look_leaves_the_older_snapshots_of_a_grown_buffer(looks):
    model = Cached()
    model.cache = torch.zeros(2)
    averager = LAWA(model, k=3, buffers="average")
    averager.end_epoch()
    model.cache = torch.ones(4)
    for _ in range(looks):
        assert torch.equal(averager.averaged_state_dict()["cache"], torch.ones(4))
    model.cache = torch.full((4,), 3.0)
    averager.end_epoch()
    assert torch.equal(averager.averaged_state_dict()["cache"], torch.full((4,), 3.0))


def test_switches_follow_longer_sentences():
    model = program.Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sema = SwitchEMA(model, optimizer, decay=constant(0.5))
    for length in (4, 7, 5, 9):
        program.train(model, optimizer, [length])
        assert sema.end_epoch()
    assert len(model.longest) == 8


class Cached(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.register_buffer("cache", torch.arange(3))


def test_a_cache_that_is_cleared_and_filled_again():
    model = Cached()
    ema = EMA(model, decay=constant(0.5))
    model.cache = None
    nudge(model)
    ema.update()
    assert ema.state_dict()["shadow"]["cache"].tolist() == [0, 1, 2]
    live = model.layer.weight.detach().clone()
    with ema.averaged():
        model.cache = torch.arange(5)
    assert torch.equal(model.layer.weight, live)
    ema.update()
    assert ema.averaged_tensors()["cache"].tolist() == [0, 1, 2, 3, 4]
    with ema.averaged():
        model.cache = None
    assert torch.equal(model.layer.weight, live)
    assert model.cache is None
    ema.update()
