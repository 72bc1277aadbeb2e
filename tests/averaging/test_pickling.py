"""Averagers can be pickled and copied, alone and inside their model."""

import copy
import io
import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn

from switch_ema import EMA, SwitchEMA, constant
from tests.averaging.helpers import batches, network, sgd, train_step


def trained():
    model = network()
    optimizer = sgd(model)
    sema = SwitchEMA(model, optimizer, decay=constant(0.8))
    for batch in batches(3):
        train_step(model, optimizer, batch)
    return model, optimizer, sema


def assert_same_average(first, second):
    expected = second.averaged_state_dict()
    for name, value in first.averaged_state_dict().items():
        assert torch.equal(value, expected[name]), name


@pytest.mark.parametrize(
    "make_copy", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_a_copy_goes_on_with_a_new_optimizer(make_copy):
    model, optimizer, sema = trained()
    twin = make_copy(sema)
    assert_same_average(twin, sema)
    assert (twin.steps, twin.epochs) == (3, 0)
    with twin.averaged() as other_model:
        pass
    assert other_model is not model
    other_optimizer = sgd(other_model)
    other_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    twin.attach_to(other_optimizer)
    for batch in batches(2):
        train_step(model, optimizer, batch)
        train_step(other_model, other_optimizer, batch)
    assert twin.end_epoch() and sema.end_epoch()
    assert_same_average(twin, sema)


def test_a_model_that_holds_its_averager_can_be_saved_whole():
    model, _, sema = trained()
    model.averager = sema
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert loaded.averager._model is loaded
    assert_same_average(loaded.averager, sema)
    loaded.averager.update()
    assert loaded.averager.steps == 4


def test_a_model_with_an_averager_beside_it_can_be_copied_before_the_first_step():
    model = nn.Linear(2, 2)
    ema = EMA(model)
    twin = pickle.loads(pickle.dumps(model))
    twin.load_state_dict(nn.Linear(2, 2).state_dict())
    assert torch.equal(ema.averaged_state_dict()["weight"], model.weight)


WITHOUT_THE_LIBRARY = """
import sys
import torch

sys.modules["switch_ema"] = None
model = torch.load(sys.argv[1], weights_only=False)
model.load_state_dict(model.state_dict())
print(model(torch.ones(1, 2)).shape)
"""


def test_a_model_saved_beside_an_averager_loads_without_this_library(tmp_path):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3))
    ema = EMA(model)  # without an optimizer it has hooks on the model
    torch.save(model, tmp_path / "model.pt")
    script = [sys.executable, "-c", WITHOUT_THE_LIBRARY, str(tmp_path / "model.pt")]
    result = subprocess.run(script, capture_output=True, text=True, check=False)
    assert result.stdout.strip() == "torch.Size([1, 3])", result.stderr
    assert ema.steps == 0


@pytest.mark.parametrize(
    "make_copy", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
@pytest.mark.parametrize("grows_before", [False, True])
def test_a_copy_notices_a_model_that_has_grown(make_copy, grows_before):
    model = network()
    model.averager = EMA(model, decay=constant(0.5))
    model.averager.update()
    if grows_before:
        model.extra = nn.Linear(2, 2)
    twin = make_copy(model)
    if not grows_before:
        twin.extra = nn.Linear(2, 2)
    with pytest.raises(RuntimeError, match="new: extra"):
        twin.averager.update()
    twin.averager.refresh()
    twin.averager.update()
    assert "extra.weight" in twin.averager.state_dict()["shadow"]


@pytest.mark.parametrize("buffers", ["average", "copy"])
def test_a_model_whose_cache_has_grown_since_the_last_step_can_be_copied(buffers):
    model = network()
    model.register_buffer("cache", torch.zeros(3))
    ema = EMA(model, decay=constant(0.5), buffers=buffers)
    ema.update()
    model.cache = torch.ones(5)
    _, twin = copy.deepcopy((model, ema))
    assert twin.averaged_state_dict()["cache"].tolist() == [1.0] * 5
    twin.update()


def test_no_copy_is_made_while_the_average_is_shown():
    _, _, sema = trained()
    with sema.averaged(), pytest.raises(RuntimeError, match="leave the with block"):
        pickle.dumps(sema)
