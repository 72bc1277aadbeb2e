import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from switch_ema.zoo.models.catalog import NETWORKS, create_network

NAMES = (
    *("vgg13-bn", "resnet18", "resnet50", "resnet101", "resnext50-32x4d"),
    *("wrn28-10", "wrn28-8", "densenet121", "deit-t", "deit-s", "deit-b", "mlp-mixer"),
    *("swin-t", "swin-s", "convnext-t", "convnext-s", "moganet-s", "moganet-b"),
)
RESIDUAL = tuple(name for name in NAMES if NETWORKS[name].residual)
# One network of each kind of stem that also trains on ImageNet, in Table 2.
IMAGENET = ("resnet50", "convnext-t", "moganet-b")
TORCHVISION = {
    "vgg13-bn": "vgg13_bn",
    "resnet18": "resnet18",
    "resnet50": "resnet50",
    "resnet101": "resnet101",
    "resnext50-32x4d": "resnext50_32x4d",
    "densenet121": "densenet121",
    "deit-b": "vit_b_16",
    "swin-t": "swin_t",
    "swin-s": "swin_s",
    "convnext-t": "convnext_tiny",
    "convnext-s": "convnext_small",
}


def on_meta(name: str, **arguments: Any) -> nn.Module:
    """Make a network without memory for its weights."""
    with torch.device("meta"):
        return create_network(name, **arguments)


def small(name: str, image_size: int = 32, **arguments: Any) -> nn.Module:
    arguments = {"num_classes": 10, "image_size": image_size, **arguments}
    return create_network(name, scale="small", **arguments)


def count(model: nn.Module) -> int:
    return sum(weights.numel() for weights in model.parameters())


def drop_rates(model: nn.Module) -> list[float]:
    modules = [m for m in model.modules() if type(m).__name__ == "DropPath"]
    return [float(module.drop_prob) for module in modules]


def test_every_network_of_the_paper_is_registered():
    assert tuple(NETWORKS) == NAMES
    assert all(name == info.name for name, info in NETWORKS.items())


@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_as_many_as_published(name):
    published = NETWORKS[name].published
    model = on_meta(
        name, num_classes=published.classes or 1, image_size=published.image_size
    )
    parameters = count(model)
    if published.classes == 0:
        parameters -= count(model.head)
    assert parameters / 1e6 == pytest.approx(published.millions, rel=0.01)


@pytest.mark.parametrize("name", TORCHVISION)
def test_parameters_are_as_many_as_in_another_library(name):
    models = pytest.importorskip("torchvision.models")
    with torch.device("meta"):
        theirs = models.get_model(TORCHVISION[name], num_classes=7)
    assert count(on_meta(name, num_classes=7, image_size=224)) == count(theirs)


@pytest.mark.parametrize("name", NAMES)
def test_classification_size_goes_forward_and_backward(name):
    size = 224 if name in IMAGENET else NETWORKS[name].cifar_size
    model = on_meta(name, num_classes=100, image_size=size)
    assert model(torch.zeros(1, 3, size, size, device="meta")).shape == (1, 100)
    # Gradients are computed for a smaller image, behind the same stem.
    size = 64 if size == 224 else size
    stem = "imagenet" if name in IMAGENET else None
    model = create_network(name, num_classes=10, image_size=size, stem=stem)
    model(torch.randn(1, 3, size, size)).logsumexp(1).sum().backward()
    for weights in model.parameters():
        assert weights.grad is not None
        assert weights.grad.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_small_version_is_the_same_class_and_small(name):
    paper = on_meta(name, num_classes=100, image_size=NETWORKS[name].cifar_size)
    version = small(name, num_classes=100)
    assert type(version) is type(paper)
    assert count(version) < 200_000


@pytest.mark.parametrize("size", [8, 12, 28, 32])
@pytest.mark.parametrize("name", NAMES)
def test_small_version_takes_small_grey_images(name, size):
    model = small(name, size, in_channels=1)
    logits = model(torch.randn(2, 1, size, size))
    assert logits.shape == (2, 10)
    logits.logsumexp(1).sum().backward()
    assert all(weights.grad is not None for weights in model.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_small_version_learns_a_batch(name):
    model = small(name, 16)
    y = torch.arange(32) % 10
    x = torch.randn(10, 3, 16, 16)[y] + 0.5 * torch.randn(32, 3, 16, 16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(20):
        loss = cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("name", ["deit-t", "deit-s", "deit-b", "swin-t", "swin-s"])
def test_small_transformers_start_with_weights_that_suit_their_width(name):
    """Of Xavier's deviation, which keeps the size of what goes through a layer."""
    torch.manual_seed(0)
    model = create_network(name, scale="small", num_classes=10, image_size=16)
    layers = [
        module
        for path, module in model.named_modules()
        if path.endswith(("mlp.fc1", "mlp.fc2"))
    ]
    assert len(layers) >= 4
    for layer in layers:
        expected = (2 / (layer.in_features + layer.out_features)) ** 0.5
        assert layer.weight.std().item() == pytest.approx(expected, rel=0.1)
        assert layer.bias.abs().max() == 0


@pytest.mark.parametrize("name", ["deit-s", "swin-t"])
def test_small_transformers_can_start_like_wide_ones(name):
    torch.manual_seed(0)
    model = create_network(
        name, scale="small", num_classes=10, image_size=16, usual_weights=True
    )
    layers = (m for path, m in model.named_modules() if path.endswith("mlp.fc1"))
    for layer in layers:
        assert layer.weight.std().item() == pytest.approx(0.02, rel=0.1)


def test_small_deit_sees_sixteen_patches_of_enlarged_digits():
    sides = {}
    for size in (8, 16, 28, 32):
        model: Any = create_network(
            "deit-t", scale="small", num_classes=10, image_size=size
        )
        sides[size] = model.patch_embed.grid_size[0]
    assert sides == {8: 8, 16: 4, 28: 7, 32: 8}


def test_small_versions_differ_where_the_networks_do():
    sizes = {name: count(small(name)) for name in NAMES}
    assert sizes["deit-t"] < sizes["deit-s"] < sizes["deit-b"]
    assert sizes["resnet50"] < sizes["resnet101"]
    for family in ("swin", "convnext"):
        assert sizes[f"{family}-t"] < sizes[f"{family}-s"]
    assert sizes["moganet-s"] < sizes["moganet-b"]
    # Only the two WRNs have the same small version, of width 1.
    assert len(set(sizes.values())) == len(NAMES) - 1
    assert sizes["wrn28-8"] == sizes["wrn28-10"]


@pytest.mark.parametrize("scale", ["paper", "small"])
@pytest.mark.parametrize("name", RESIDUAL)
def test_drop_path_reaches_the_blocks(name, scale):
    size = NETWORKS[name].cifar_size if scale == "paper" else 32
    shape = {"num_classes": 2, "image_size": size, "scale": scale}
    assert max(drop_rates(on_meta(name, **shape, drop_path=0.2))) == pytest.approx(0.2)
    assert not any(drop_rates(on_meta(name, **shape)))


@pytest.mark.parametrize("name", RESIDUAL)
def test_drop_path_changes_training_and_not_evaluation(name):
    model = small(name, 16, drop_path=0.5)
    # Layer scales and last normalisations start near 0 and would hide the difference.
    with torch.no_grad():
        for weights in model.parameters():
            weights.normal_(std=0.5)
    x = torch.randn(4, 3, 16, 16)
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))


def test_a_network_without_residual_blocks_refuses_drop_path():
    with pytest.raises(ValueError, match=r"drop_path must be 0 for densenet121"):
        small("densenet121", drop_path=0.1)


def test_unknown_name_lists_the_names():
    with pytest.raises(ValueError, match=r"one of vgg13-bn, .*moganet-b, got 'vgg'"):
        small("vgg")


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("resnet18", {"scale": "large"}, r"scale must be 'paper' or 'small'"),
        ("deit-s", {"stem": "cifar"}, r"stem must be imagenet for deit-s"),
        ("wrn28-10", {"stem": "imagenet"}, r"stem must be cifar for wrn28-10"),
        ("resnet18", {"stem": "imagenet", "scale": "small"}, r"stem must be cifar"),
        ("deit-s", {"image_size": 30}, r"multiple of the patch's 16 .*got 30"),
        ("convnext-t", {"image_size": 16, "stem": "imagenet"}, r"at least 32, got 16"),
        ("vgg13-bn", {"image_size": 16}, r"image_size must .* at least 32, got 16"),
        ("moganet-s", {"image_size": 7}, r"image_size must .* at least 8, got 7"),
        ("mlp-mixer", {"image_size": 4, "scale": "small"}, r"at least 8, got 4"),
        ("resnet18", {"num_classes": 0}, r"num_classes must be .* got 0"),
        ("resnet18", {"in_channels": 0}, r"in_channels must be .* got 0"),
        ("resnet18", {"drop_path": 1.0}, r"drop_path must be in \[0, 1\), got 1.0"),
    ],
)
def test_bad_values_are_refused(name, arguments, message):
    with pytest.raises(ValueError, match=message):
        on_meta(name, **{"num_classes": 2, "image_size": 32, **arguments})


def test_stem_follows_the_image_unless_given():
    def first(**arguments: Any) -> tuple[int, ...]:
        return on_meta("resnet18", num_classes=2, **arguments).conv1.kernel_size

    assert first(image_size=32) == (3, 3)
    assert first(image_size=224) == (7, 7)
    assert first(image_size=32, stem="imagenet") == (7, 7)
    assert first(image_size=224, stem="cifar") == (3, 3)


def test_the_registry_does_not_import_timm():
    code = "import sys, switch_ema.zoo.models.catalog; sys.exit('timm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
