"""Extracted weights are those that the library itself would load."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from switch_ema.doctor.extract import extract_weights
from switch_ema.doctor.recognise import inspect_checkpoint
from tests.doctor.libraries import WRITERS, network


@pytest.mark.parametrize("library", WRITERS)
@pytest.mark.parametrize("what", ["average", "live"])
def test_the_model_loads_it_and_gives_the_same_logits(library, what, tmp_path):
    written = WRITERS[library](tmp_path)
    expected = getattr(written, what)
    extract_weights(written.path, tmp_path / "out.safetensors", what)
    found = load_file(tmp_path / "out.safetensors")
    prefix = {"LitEma": "model.diffusion_model.", "ultralytics": "model."}
    cut = len(prefix.get(library, ""))
    models = []
    for weights in (found, written.live | expected):
        model = network(seed=9).eval()
        model.load_state_dict({name[cut:]: value for name, value in weights.items()})
        models.append(model(torch.ones(2, 1, 4, 4)))
    assert torch.equal(*models)


def test_a_list_takes_the_names_of_sorted_live_weights(tmp_path):
    written = WRITERS["torch_ema"](tmp_path)
    save_file(written.live, tmp_path / "model.safetensors")  # sorts its names
    content = torch.load(written.path, weights_only=True)
    torch.save(content["ema"], tmp_path / "ema.pt")
    out = tmp_path / "out.safetensors"
    with pytest.raises(ValueError, match="without names"):
        extract_weights(tmp_path / "ema.pt", out)
    extract_weights(tmp_path / "ema.pt", out, like=tmp_path / "model.safetensors")
    found = load_file(out)
    for name in ("0.weight", "1.weight", "1.bias", "4.weight"):
        assert torch.equal(found[name], written.average[name])
    assert torch.equal(found["1.running_mean"], written.live["1.running_mean"])


def test_a_folder_has_shards_an_index_and_the_configuration(tmp_path):
    (tmp_path / "source").mkdir()
    written = WRITERS["DiT"](tmp_path / "source")
    (tmp_path / "source" / "config.json").write_text("{}")
    extract_weights(written.path, tmp_path / "out", shard_bytes=100)
    index = json.loads((tmp_path / "out/model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 1
    assert (tmp_path / "out/config.json").is_file()
    (weights,) = inspect_checkpoint(tmp_path / "out").of("average")
    assert weights.tensors.keys() == written.average.keys()


def test_the_header_says_what_the_weights_are(tmp_path):
    written = WRITERS["ema-pytorch"](tmp_path)
    extract_weights(written.path, tmp_path / "out.safetensors")
    holdings = inspect_checkpoint(tmp_path / "out.safetensors")
    (average,) = holdings.of("average")
    assert holdings.provenance["switch_ema.library"] == "ema-pytorch"
    assert holdings.provenance["switch_ema.source"] == "ema-pytorch.pt"
    assert average.tensors.keys() == written.average.keys()


def test_refusals_write_nothing(tmp_path):
    save_file(network().state_dict(), tmp_path / "model.safetensors")
    out = tmp_path / "out.safetensors"
    with pytest.raises(
        ValueError, match=r"has no average; it has weights \(top level\)"
    ):
        extract_weights(tmp_path / "model.safetensors", out)
    written = WRITERS["DiT"](tmp_path)
    other = torch.nn.Linear(2, 2).state_dict()
    save_file(other, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="None of the names fit"):
        extract_weights(written.path, out, like=tmp_path / "other.safetensors")
    assert not out.exists()
    out.touch()
    with pytest.raises(FileExistsError):
        extract_weights(written.path, out)
