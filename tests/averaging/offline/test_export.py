"""Averaged weights in a file that timm, transformers and plain torch load."""

import os

import pytest
import torch
from torch import nn

from switch_ema import EMA, constant
from switch_ema.averaging.offline.export import save_averaged
from tests.averaging.helpers import assert_same, batches, network, sgd, train_step

files = pytest.importorskip("safetensors.torch")


def trained(model=None):
    model = model or network()
    optimizer = sgd(model)
    ema = EMA(model, optimizer, decay=constant(0.9))
    for batch in batches(3):
        train_step(model, optimizer, batch)
    return ema


def test_plain_torch_loads_it_strictly_tied_weights_too(tmp_path):
    ema = trained(nn.DataParallel(network()))
    ema.save_averaged(tmp_path / "average.safetensors")
    fresh = network(seed=1)
    fresh.load_state_dict(files.load_file(tmp_path / "average.safetensors"))
    assert_same(ema.averaged_state_dict(), dict(fresh.state_dict()))
    assert fresh.head.weight is fresh.body.weight


def test_timm_loads_it(tmp_path):
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    model = timm.create_model("test_resnet", num_classes=3)
    optimizer = sgd(model)
    ema = EMA(model, optimizer, decay=constant(0.9))
    model(torch.randn(2, 3, 32, 32)).sum().backward()
    optimizer.step()
    path = tmp_path / "model.safetensors"
    save_averaged(ema, path)
    loaded = timm.create_model("test_resnet", num_classes=3, checkpoint_path=str(path))
    assert_same(ema.averaged_state_dict(), dict(loaded.state_dict()))


def test_transformers_loads_it(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=8, n_positions=4, n_embd=4, n_layer=1, n_head=1
    )
    model = transformers.GPT2LMHeadModel(config)
    optimizer = sgd(model)
    ema = EMA(model, optimizer, decay=constant(0.9))
    tokens = torch.tensor([[1, 2, 3]])
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    config.save_pretrained(tmp_path)
    save_averaged(ema, tmp_path / "model.safetensors")
    loaded = transformers.GPT2LMHeadModel.from_pretrained(tmp_path)
    assert_same(ema.averaged_state_dict(), dict(loaded.state_dict()))


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "average.safetensors"
    ema = trained()
    ema.save_averaged(path)
    before = path.read_bytes()

    def fails(source, target):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(OSError, match="disk full"):
        ema.save_averaged(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_what_is_no_tensor_is_refused_by_name(tmp_path):
    class Extra(nn.Linear):
        def get_extra_state(self):
            return {"a": 1}

        def set_extra_state(self, state):
            pass

    with pytest.raises(ValueError, match=r"_extra_state in the state dict is dict"):
        EMA(Extra(1, 1)).save_averaged(tmp_path / "average.safetensors")
    assert not list(tmp_path.iterdir())
