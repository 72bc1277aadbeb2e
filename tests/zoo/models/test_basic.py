import pytest
import torch

from switch_ema.zoo.models import IMAGE_NETWORKS, image_network


@pytest.mark.parametrize("side", [8, 12, 28, 32])
@pytest.mark.parametrize("name", IMAGE_NETWORKS)
def test_networks_fit_the_images(name, side):
    with torch.device("meta"):
        network = image_network(name, 3, side, 7)
        assert network.eval()(torch.zeros(2, 3, side, side)).shape == (2, 7)


def test_resnet18_has_the_usual_size():
    with torch.device("meta"):
        network = image_network("resnet18", 3, 32, 10)
    assert sum(weight.numel() for weight in network.parameters()) == 11_173_962


def test_unknown_name_lists_the_names():
    with pytest.raises(ValueError, match="'small-cnn' or 'resnet18' or 'mlp', got 'x'"):
        image_network("x", 3, 8, 2)
