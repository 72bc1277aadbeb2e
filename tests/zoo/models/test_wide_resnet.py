import pytest
import torch
from torch import nn
from torch.nn.functional import batch_norm, conv2d, relu

from switch_ema.zoo.models.wide_resnet import WideBlock, WideResNet


def convolutions(model: nn.Module, kernel: int) -> list[nn.Conv2d]:
    found = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    return [m for m in found if m.kernel_size == (kernel, kernel)]


def test_layers_are_those_of_wrn_28_10():
    with torch.device("meta"):
        model = WideResNet(28, 10, 100)
    # One in the stem, and 3 groups of 4 blocks with 2 each.
    assert len(convolutions(model, 3)) == 25
    # The first block of each group changes the width.
    assert [m.out_channels for m in convolutions(model, 1)] == [160, 320, 640]
    assert model.head.in_features == 640


def test_parameters_of_a_tiny_network_worked_out_by_hand():
    # Stem 3*16*9 = 432.
    # 16 -> 16: norms 2*(32), convolutions 2*16*16*9 = 4672 in all.
    # 16 -> 32: norms 32+64, convolutions 16*32*9 + 32*32*9, around 16*32 = 14432.
    # 32 -> 64: norms 64+128, convolutions 32*64*9 + 64*64*9, around 32*64 = 57536.
    # Norm 128 and head 64*10 + 10.
    expected = 432 + 4672 + 14432 + 57536 + 128 + 650
    assert sum(p.numel() for p in WideResNet(10, 1, 10).parameters()) == expected


@pytest.mark.parametrize(("stem_stride", "side"), [(1, 8), (2, 4)])
def test_images_are_halved_twice_after_the_stem(stem_stride, side):
    model = WideResNet(10, 1, 10, stem_stride=stem_stride)
    assert model.blocks(model.stem(torch.randn(2, 3, 32, 32))).shape[2:] == (side, side)


@pytest.mark.parametrize(
    ("before", "width", "stride"), [(8, 8, 1), (4, 8, 1), (8, 8, 2)]
)
def test_block_follows_the_definition(before, width, stride):
    block = WideBlock(before, width, stride, 0.0).double()
    x = torch.randn(3, before, 6, 6, dtype=torch.float64)
    active = relu(batch_norm(x, None, None, training=True))
    found = conv2d(active, block.first.weight, stride=stride, padding=1)
    found = relu(batch_norm(found, None, None, training=True))
    found = conv2d(found, block.second.weight, padding=1)
    plain = before == width and stride == 1
    around = x if plain else conv2d(active, block.around.weight, stride=stride)
    torch.testing.assert_close(block(x), around + found)


def test_drop_path_rises_from_block_to_block():
    model = WideResNet(16, 1, 10, drop_path=0.5)
    rates = [block.drop_path.drop_prob for block in model.blocks]
    assert rates == pytest.approx([0, 0.1, 0.2, 0.3, 0.4, 0.5])


def test_whole_examples_are_dropped_and_the_mean_stays():
    x = torch.ones(10_000, 2, 3)
    y = WideBlock(2, 2, 1, 0.2).drop_path(x)
    assert (y == y[:, :1, :1]).all()
    assert set(y.unique().tolist()) == {0.0, 1.25}
    assert y.mean().item() == pytest.approx(1, abs=0.02)


def test_evaluation_and_rate_0_change_nothing():
    x = torch.randn(4, 3)
    assert WideBlock(2, 2, 1, 0.5).eval().drop_path(x) is x
    assert WideBlock(2, 2, 1, 0.0).drop_path(x) is x


def test_one_block_is_never_dropped():
    model = WideResNet(10, 1, 10, drop_path=0.3)
    assert model.blocks[0].drop_path.drop_prob == 0


@pytest.mark.parametrize("depth", [4, 9, 29])
def test_impossible_depth_is_refused(depth):
    with pytest.raises(ValueError, match=rf"depth must be 6 \* n \+ 4 .* got {depth}"):
        WideResNet(depth, 1, 10)
