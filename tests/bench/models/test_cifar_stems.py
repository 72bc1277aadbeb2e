import pytest
import timm
import torch
from torch import nn

from switch_ema.bench.models.cifar_stems import (
    convnext_for_cifar,
    densenet_for_cifar,
    resnet_for_cifar,
    vgg_for_cifar,
)
from switch_ema.bench.models.resnet import resnet18

STEMS = {
    "resnet18": resnet_for_cifar,
    "densenet121": densenet_for_cifar,
    "convnext_atto": convnext_for_cifar,
}


def test_resnet18_agrees_with_the_one_written_by_hand():
    ours = resnet18(3, 10)
    model = timm.create_model("resnet18", num_classes=10)
    resnet_for_cifar(model)
    # The layers come in the same order under other names.
    names, values = model.state_dict(), ours.state_dict().values()
    model.load_state_dict(dict(zip(names, values, strict=True)))
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(model(x), ours(x))


@pytest.mark.parametrize(("stride", "side"), [(1, 4), (2, 2)])
@pytest.mark.parametrize("name", STEMS)
def test_an_image_of_32_pixels_reaches_the_last_stage(name, stride, side):
    with torch.device("meta"):
        model = timm.create_model(name, num_classes=10)
        STEMS[name](model, stride=stride)
        features = model.forward_features(torch.zeros(2, 3, 32, 32))
    assert features.shape[2:] == (side, side)


@pytest.mark.parametrize("name", STEMS)
def test_only_the_stem_changes(name):
    with torch.device("meta"):
        before = timm.create_model(name, num_classes=10, in_chans=1)
        after = timm.create_model(name, num_classes=10, in_chans=1)
        STEMS[name](after)
        logits = after(torch.zeros(2, 1, 32, 32))
    assert logits.shape == (2, 10)
    ours, theirs = dict(after.named_parameters()), dict(before.named_parameters())
    shapes = {key: value.shape for key, value in ours.items()}
    changed = {key for key in theirs if shapes.get(key) != theirs[key].shape}
    stem = {
        "resnet18": {"conv1.weight"},
        "densenet121": {
            "features.conv0.weight",
            "features.norm0.weight",
            "features.norm0.bias",
        },
        "convnext_atto": {"stem.0.weight"},
    }
    assert changed == stem[name]
    assert set(ours) <= set(theirs)


def test_stems_start_like_their_networks():
    model = timm.create_model("convnext_atto", num_classes=10)
    convnext_for_cifar(model)
    assert model.stem[0].weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert not model.stem[0].bias.any()
    model = timm.create_model("resnet18", num_classes=10)
    resnet_for_cifar(model)
    # Deviation sqrt(2 / (64 * 9)).
    assert model.conv1.weight.std().item() == pytest.approx(0.0589, rel=0.1)


def test_vgg_keeps_its_convolutions_and_one_linear_layer():
    with torch.device("meta"):
        model = timm.create_model("vgg13_bn", num_classes=10)
        vgg_for_cifar(model)
        assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    kinds = [type(m) for m in model.modules()]
    assert kinds.count(nn.Conv2d) == 10
    assert kinds.count(nn.Linear) == 1
    assert model.head.fc.in_features == 512
