"""Which weights the checkpoints of each library hold."""

import pytest
import torch

from switch_ema.doctor.reading import read
from switch_ema.doctor.recognise import inspect_checkpoint
from tests.doctor.libraries import STEPS, WRITERS, network, train


def values(part, like):
    found = {name: read(leaf) for name, leaf in part.tensors.items()}
    if not part.is_named:  # a list of the parameters
        names = [n for n in like if "running" not in n and "num_batches" not in n]
        found = dict(zip(names, found.values(), strict=True))
    return found


@pytest.mark.parametrize("library", WRITERS)
def test_live_weights_and_average_are_told_apart(library, tmp_path):
    written = WRITERS[library](tmp_path)
    holdings = inspect_checkpoint(written.path)
    (average,) = holdings.of("average")
    (live,) = holdings.of("live")
    for part, expected in ((average, written.average), (live, written.live)):
        found = values(part, expected)
        assert len(found) >= 6
        for name, value in found.items():
            torch.testing.assert_close(value, expected[name], rtol=0, atol=0)


def test_transformers_folder_with_our_callback(tmp_path):
    from safetensors.torch import save_file

    from switch_ema import EMA

    model = network()
    ema = EMA(model, decay=0.9)
    train(model, ema.update)
    save_file(ema.averaged_state_dict(), tmp_path / "model.safetensors")
    state = {"averager": ema.state_dict(), "live": ema.live_tensors()}
    torch.save(state | {"first_epoch": 0}, tmp_path / "switch_ema.pt")
    holdings = inspect_checkpoint(tmp_path)
    (average,), (live,) = holdings.of("average"), holdings.of("live")
    assert holdings.format == "Transformers with switch-ema's callback"
    assert average.where == "model.safetensors"
    assert average.facts["steps"] == STEPS
    assert torch.equal(read(live.tensors["0.weight"]), model.state_dict()["0.weight"])


def test_diffusers_folder(tmp_path):
    import json

    from safetensors.torch import save_file

    for name, factor in (("unet", 1.0), ("unet_ema", 0.5)):
        folder = tmp_path / name
        folder.mkdir()
        weights = {"conv.weight": torch.full((3,), factor)}
        save_file(weights, folder / "diffusion_pytorch_model.safetensors")
        config = {"decay": 0.9999, "optimization_step": 7} if factor < 1 else {}
        (folder / "config.json").write_text(json.dumps(config))
    holdings = inspect_checkpoint(tmp_path)
    (average,), (live,) = holdings.of("average"), holdings.of("live")
    assert average.facts == {"decay": 0.9999, "optimization_step": 7}
    assert read(average.tensors["conv.weight"])[0] == 0.5
    assert read(live.tensors["conv.weight"])[0] == 1.0


def test_lightning_checkpoints(tmp_path):
    model = network()
    average = {name: value * 0.5 for name, value in model.state_dict().items()}
    content = {
        "state_dict": average,
        "current_model_state": model.state_dict(),
        "averaging_state": {"n_averaged": torch.tensor(5)},
        "pytorch-lightning_version": "2.6",
        "optimizer_states": [torch.optim.SGD(model.parameters()).state_dict()],
    }
    torch.save(content, tmp_path / "theirs.ckpt")
    holdings = inspect_checkpoint(tmp_path / "theirs.ckpt")
    assert [part.where for part in holdings.parts[:2]] == [
        "state_dict",
        "current_model_state",
    ]
    assert holdings.parts[0].facts == {"n_averaged": 5}

    from switch_ema import EMA

    state = {"averager": EMA(model).state_dict(), "live": model.state_dict()}
    torch.save({"state_dict": average, "switch_ema": state}, tmp_path / "ours.ckpt")
    holdings = inspect_checkpoint(tmp_path / "ours.ckpt")
    (average_part,) = holdings.of("average")
    assert average_part.where == "state_dict"
    assert average_part.facts["method"] == "ema"


def test_distributed_checkpoint_of_torchtitan(tmp_path):
    import torch.distributed.checkpoint as dcp

    model = network()
    average = {
        f"ema.state.{name}.ema_params": value.detach() * 0.5
        for name, value in model.named_parameters()
    }
    dcp.save({**model.state_dict(), **average}, checkpoint_id=str(tmp_path / "step"))
    holdings = inspect_checkpoint(tmp_path / "step")
    (average_part,), (live,) = holdings.of("average"), holdings.of("live")
    assert average_part.library == "torchtitan"
    weight = model.state_dict()["0.weight"]
    assert torch.equal(read(average_part.tensors["0.weight"]), weight * 0.5)
    assert torch.equal(read(live.tensors["0.weight"]), weight)


def test_one_set_of_weights_does_not_say_what_it_is(tmp_path):
    torch.save(network().state_dict(), tmp_path / "model.pt")
    holdings = inspect_checkpoint(tmp_path / "model.pt")
    assert [part.role for part in holdings.parts] == ["weights"]
    assert holdings.notes == (
        "The file does not say whether these weights are averaged.",
    )


def test_an_average_that_was_never_initialised_is_noted(tmp_path):
    from ema_pytorch import EMA

    torch.save(EMA(network()).state_dict(), tmp_path / "ema.pt")
    (average,) = inspect_checkpoint(tmp_path / "ema.pt").of("average")
    assert "never initialised" in average.note


def test_kept_weights_of_a_comparison_say_what_they_are(tmp_path):
    from safetensors.torch import save_file

    from switch_ema.averaging.offline.provenance import provenance

    for weights in ("live", "average"):
        path = tmp_path / f"{weights}.safetensors"
        header = provenance(weights, {"method": "ema:decay=0.99", "steps": 12})
        save_file(network().state_dict(), path, header)
        (part,) = inspect_checkpoint(path).parts
        assert part.role == weights
