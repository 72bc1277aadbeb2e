"""SimMIM's transformer, against numbers worked out from its description."""

import math

import pytest
import torch
from timm.layers import DropPath

from switch_ema.bench.optimizers.groups import exempt_names
from switch_ema.zoo.models.relative_vit import (
    copy_to_blocks,
    encode,
    relative_vit,
    truncated_normal_,
)
from switch_ema.zoo.models.shape import NetworkShape

pytestmark = pytest.mark.zoo


def made(scale="paper", side=32, network="deit-t", drop_path=0.1, shared=True):
    shape = NetworkShape(num_classes=1, image_size=side, drop_path=drop_path)
    torch.manual_seed(0)
    return relative_vit(network, scale, shape, shared=shared)


@pytest.mark.parametrize(
    ("network", "width", "heads"), [("deit-s", 384, 6), ("deit-b", 768, 12)]
)
def test_counts_of_parameters(network, width, heads):
    """Queries and values have biases, keys have none; no absolute positions."""
    with torch.device("meta"):
        vit = made(side=224, network=network)
    attention = (3 * width**2 + 2 * width) + (width**2 + width)
    perceptron = (4 * width**2 + 4 * width) + (4 * width**2 + width)
    block = attention + perceptron + 4 * width + 2 * width  # norms, layer scales
    table = (27**2 + 3) * heads  # offsets from -13 to 13, and three for the class token
    patches = (3 * 16**2 + 1) * width
    expected = 12 * block + table + patches + width + 2 * width
    assert sum(p.numel() for p in vit.parameters()) == expected
    assert vit.pos_embed is None


def test_each_offset_between_patches_has_one_bias():
    vit = made(side=48)  # 3 by 3 patches
    table = vit.rel_pos_bias.relative_position_bias_table
    with torch.no_grad():
        table.copy_(torch.arange(table.numel()).view_as(table))
    bias = vit.rel_pos_bias()
    for first in range(9):
        for second in range(9):
            (y1, x1), (y2, x2) = divmod(first, 3), divmod(second, 3)
            row = (y1 - y2 + 2) * 5 + (x1 - x2 + 2)
            assert torch.equal(bias[:, 1 + first, 1 + second], table[row])
    assert (bias[0, 0, 1:] == table[25, 0]).all()  # the class token looks at patches
    assert (bias[0, 1:, 0] == table[26, 0]).all()
    assert bias[0, 0, 0] == table[27, 0]


def test_positions_matter_only_through_the_biases():
    """With equal biases the order of the patches does not matter, with others it does.

    That is what "no absolute positions" means.
    """
    vit = made(side=48).eval()
    tokens = torch.randn(2, 9, 192)
    order = torch.randperm(9)
    with torch.no_grad():
        torch.testing.assert_close(
            encode(vit, tokens)[:, 1:][:, order],
            encode(vit, tokens[:, order])[:, 1:],
            rtol=1e-4,
            atol=1e-5,
        )
        vit.rel_pos_bias.relative_position_bias_table.normal_(std=3)
        changed = encode(vit, tokens)[:, 1:][:, order]
        assert (changed - encode(vit, tokens[:, order])[:, 1:]).abs().max() > 1e-3


def test_small_networks_have_absolute_positions_as_well():
    vit = made("small", side=8, drop_path=0.0)
    assert vit.pos_embed.shape == (1, 65, 32)
    assert vit.rel_pos_bias.relative_position_bias_table.shape == (15**2 + 3, 2)
    assert vit.blocks[0].gamma_1 is None


@pytest.mark.parametrize("scale", ["small", "paper"])
def test_encodes_as_timm_does(scale):
    vit = made(scale).eval()
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        found = encode(vit, vit.patch_embed(images))
        torch.testing.assert_close(found, vit.forward_features(images))
        assert torch.equal(vit(images), found[:, 1:].mean(1))


def test_initial_weights_layer_scale_and_stochastic_depth():
    vit = made()
    assert vit.blocks[0].attn.qkv.weight.abs().max() <= 0.02
    assert vit.patch_embed.proj.weight.abs().max() <= 0.02
    # A normal distribution cut at one standard deviation has 0.54 of its deviation.
    assert vit.blocks[3].mlp.fc1.weight.std().item() == pytest.approx(0.0108, rel=0.02)
    for number, block in enumerate(vit.blocks, start=1):
        bound = 0.02 / math.sqrt(2 * number)
        for layer in (block.attn.proj, block.mlp.fc2):
            assert 0.99 * bound < layer.weight.abs().max() <= bound
        assert (block.gamma_1 == 0.1).all() and (block.gamma_2 == 0.1).all()
    rates = {m.drop_prob for m in vit.modules() if isinstance(m, DropPath)}
    assert sorted(rates) == pytest.approx([0.1 * k / 11 for k in range(1, 12)])


def test_tables_and_layer_scales_have_no_weight_decay():
    names = exempt_names(made())
    assert "rel_pos_bias.relative_position_bias_table" in names
    assert {"cls_token", "blocks.0.gamma_1", "blocks.0.attn.q_bias"} <= names
    assert "blocks.0.attn.qkv.weight" not in names


def test_fine_tuning_gives_each_block_a_copy_of_the_table():
    source, target = made().eval(), made(shared=False).eval()
    with torch.no_grad():
        source.rel_pos_bias.relative_position_bias_table.normal_()
    copy_to_blocks(source, target)
    tokens = torch.randn(2, 4, 192)
    source.norm = torch.nn.Identity()  # the pooled features have a norm of their own
    with torch.no_grad():
        torch.testing.assert_close(encode(target, tokens), encode(source, tokens))
    tables = [block.attn.relative_position_bias_table for block in target.blocks]
    assert len({table.data_ptr() for table in tables}) == 12
    assert isinstance(target.fc_norm, torch.nn.LayerNorm)


def test_truncated_normal():
    values = torch.empty(100_000)
    truncated_normal_(values, std=0.5)
    assert values.abs().max() <= 0.5
    assert values.mean() == pytest.approx(0, abs=0.005)
