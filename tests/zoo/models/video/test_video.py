"""The four video networks: published sizes, and what they see."""

import pytest
import torch
from timm.layers import DropPath

from switch_ema.zoo.models.video import VIDEO_NETWORKS, Recurrent, SimVP

PARAMETERS = {
    "simvp": 57_946_113,
    "simvp-v2": 46_769_665,
    "convlstm": 15_083_520,
    "predrnn": 23_838_720,
}
MILLIONS = {
    # OpenSTL's benchmark of MetaFormers on Moving MNIST, in millions
    "simvp-vit": 46.1,
    "simvp-swin": 46.1,
    "simvp-mlp-mixer": 38.2,
    "simvp-convmixer": 3.9,
    "simvp-poolformer": 37.1,
    "simvp-convnext": 37.3,
    "simvp-moganet": 46.8,
}


@pytest.mark.parametrize("name", VIDEO_NETWORKS)
def test_has_the_published_number_of_parameters(name):
    with torch.device("meta"):
        model = VIDEO_NETWORKS[name].make["paper"](64)
    count = sum(p.numel() for p in model.parameters())
    if name in PARAMETERS:
        assert count == PARAMETERS[name]
    else:
        assert round(count / 1e6, 1) == MILLIONS[name]


@pytest.mark.parametrize("name", VIDEO_NETWORKS)
def test_predicts_frames_of_the_size_of_those_seen(name):
    model = VIDEO_NETWORKS[name].make["small"](16)
    predicted = model(torch.rand(2, 10, 1, 16, 16))
    frames = 19 if isinstance(model, Recurrent) else 10
    assert predicted.shape == (2, frames, 1, 16, 16)
    predicted.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("name", ["convlstm", "predrnn"])
def test_recurrent_network_sees_forced_frames_and_no_others(name):
    torch.manual_seed(0)
    model = VIDEO_NETWORKS[name].make["small"](16)
    clips = torch.rand(1, 20, 1, 8, 8)
    other = clips.clone()
    other[:, 14] = torch.rand(1, 8, 8)  # the frame 15 of 20
    unseen, forced = torch.zeros(1, 9).bool(), torch.zeros(1, 9).bool()
    forced[:, 4] = True

    with torch.no_grad():
        assert torch.equal(model(clips, unseen), model(other, unseen))
        assert torch.equal(model(clips, unseen), model(clips[:, :10]))
        first, second = model(clips, forced), model(other, forced)
    # Step 15 sees the frame 15 and predicts the frame 16, at position 14.
    assert torch.equal(first[:, :14], second[:, :14])
    assert not torch.equal(first[:, 14], second[:, 14])


def test_unknown_translators_are_refused():
    with pytest.raises(ValueError, match="translator must be one of inception, gsta"):
        SimVP("lstm", width=8, hidden=16, depth=2)


@pytest.mark.parametrize(("scale", "blocks"), [("small", 4), ("paper", 8)])
def test_stochastic_depth_of_the_second_version_falls_from_a_hundredth(scale, blocks):
    """OpenSTL: equally spaced rates from 0.01 to the configured 0."""
    with torch.device("meta"):
        network = VIDEO_NETWORKS["simvp-v2"].make[scale](64)
    rates = [m.drop_prob for m in network.modules() if isinstance(m, DropPath)]
    expected = [0.01 - 0.01 * k / (blocks - 1) for k in range(blocks)]
    assert rates == pytest.approx(expected)
