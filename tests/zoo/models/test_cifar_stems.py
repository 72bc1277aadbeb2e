import pytest
import timm
import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from switch_ema.zoo.models.cifar_stems import (
    convnext_for_cifar,
    densenet_for_cifar,
    resnet_for_cifar,
    vgg_for_cifar,
)

STEMS = {
    "resnet18": resnet_for_cifar,
    "densenet121": densenet_for_cifar,
    "convnext_atto": convnext_for_cifar,
}


class ReferenceBlock(nn.Module):
    """Two convolutions of 3x3 pixels and a shortcut (He et al., 2016)."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(*convolution(before, width, 3, stride))
        self.second = nn.Sequential(*convolution(width, width, 3, 1))
        same = before == width and stride == 1
        self.shortcut = nn.Sequential(
            *([] if same else convolution(before, width, 1, stride))
        )

    def forward(self, x: Tensor) -> Tensor:
        return relu(self.second(relu(self.first(x))) + self.shortcut(x))


def convolution(before: int, width: int, kernel: int, stride: int) -> list[nn.Module]:
    layer = nn.Conv2d(before, width, kernel, stride, kernel // 2, bias=False)
    return [layer, nn.BatchNorm2d(width)]


def reference_resnet18(channels: int, outputs: int) -> nn.Sequential:
    """Make ResNet-18 for CIFAR: a 3x3 stem of stride 1 and no pooling after it."""
    layers: list[nn.Module] = [*convolution(channels, 64, 3, 1), nn.ReLU()]
    before = 64
    for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [ReferenceBlock(before, width, stride)]
        layers += [ReferenceBlock(width, width, 1)]
        before = width
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, outputs)]
    return nn.Sequential(*layers, *head)


def test_resnet18_agrees_with_the_one_written_by_hand():
    ours = reference_resnet18(3, 10)
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
