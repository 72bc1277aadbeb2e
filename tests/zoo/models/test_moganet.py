import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, gelu, silu

from switch_ema.zoo.models.moganet import (
    ChannelAggregation,
    Decomposition,
    GatedAggregation,
    MogaBlock,
    MogaNet,
    MultiOrderContext,
)


def tiny(**arguments: object) -> MogaNet:
    return MogaNet((8, 8, 16, 16), (1, 1, 2, 1), (2, 2, 2, 2), 5, **arguments)


def depthwise(x: Tensor, layer: nn.Conv2d, dilation: int) -> Tensor:
    """Convolve channel by channel, each with its own kernel."""
    radius = dilation * (layer.kernel_size[0] // 2)
    channels = [
        conv2d(
            x[:, c : c + 1],
            layer.weight[c : c + 1],
            layer.bias[c : c + 1],
            padding=radius,
            dilation=dilation,
        )
        for c in range(x.shape[1])
    ]
    return torch.cat(channels, 1)


def seen(response: Tensor) -> tuple[int, int]:
    """Return the height and width of the area that is not 0."""
    rows, columns = response.nonzero(as_tuple=True)
    return (
        int(rows.max() - rows.min()) + 1,
        int(columns.max() - columns.min()) + 1,
    )


def test_context_reaches_5_13_and_23_pixels_on_shares_1_3_4():
    context = MultiOrderContext(16).double()
    with torch.no_grad():
        context.join.weight.copy_(torch.eye(16)[:, :, None, None])
        for layer in (context.near, context.middle, context.far):
            layer.weight.fill_(1)
    for layer in context.children():
        layer.bias.data.zero_()
    x = torch.zeros(1, 16, 41, 41, dtype=torch.float64)
    x[:, :, 20, 20] = 1
    areas = [seen(channel) for channel in context(x)[0]]
    assert areas == [(5, 5)] * 2 + [(13, 13)] * 6 + [(23, 23)] * 8


def test_context_agrees_with_channel_by_channel_convolution():
    context = MultiOrderContext(8).double()
    x = torch.randn(2, 8, 9, 9, dtype=torch.float64)
    near = depthwise(x, context.near, 1)
    middle = depthwise(near[:, 1:4], context.middle, 2)
    far = depthwise(near[:, 4:], context.far, 3)
    expected = context.join(torch.cat([near[:, :1], middle, far], 1))
    torch.testing.assert_close(context(x), expected)


def test_decomposition_strengthens_what_is_not_common():
    decompose = Decomposition(1)
    decompose.scale.data.fill_(0.5)
    x = torch.tensor([1.0, 3.0]).view(1, 1, 1, 2)
    # The mean is 2, so 1 and 3 move by half of -1 and of 1.
    assert decompose(x, x.mean()).flatten().tolist() == [0.5, 3.5]


def test_gated_aggregation_follows_the_definition():
    layer = GatedAggregation(8).double()
    layer.decompose.scale.data.fill_(0.3)
    x = torch.randn(2, 8, 6, 6, dtype=torch.float64)
    z = layer.project(x)
    z = silu(1.3 * z - 0.3 * z.mean((2, 3), keepdim=True))
    gated = silu(layer.gate(z)) * silu(layer.context(z))
    torch.testing.assert_close(layer(x), x + layer.join(gated))


def test_channel_aggregation_follows_the_definition():
    layer = ChannelAggregation(4, 12).double()
    layer.decompose.scale.data.fill_(0.3)
    x = torch.randn(2, 4, 5, 5, dtype=torch.float64)
    z = gelu(depthwise(layer.widen(x), layer.near, 1))
    expected = layer.narrow(1.3 * z - 0.3 * gelu(layer.shared(z)))
    torch.testing.assert_close(layer(x), expected)


def test_block_scales_its_branches():
    block = MogaBlock(8, 2, 0.0)
    x = torch.randn(2, 8, 6, 6)
    torch.testing.assert_close(block(x), x, atol=1e-3, rtol=0)
    block.spatial_scale.data.fill_(1)
    first = x + block.spatial(block.spatial_norm(x))
    torch.testing.assert_close(block(x), first, atol=1e-3, rtol=0)
    block.channel_scale.data.fill_(1)
    second = first + block.channel(block.channel_norm(first))
    torch.testing.assert_close(block(x), second)


@pytest.mark.parametrize(("stride", "sides"), [(2, [8, 4, 2, 1]), (1, [32, 16, 8, 4])])
def test_stages_halve_the_image(stride, sides):
    model = tiny(stem_stride=stride)
    x = torch.randn(2, 3, 32, 32)
    found = []
    for stage in model.stages:
        x = stage(x)
        found.append(x.shape[-1])
    assert found == sides


def test_drop_path_rises_from_block_to_block():
    model = tiny(drop_path=0.4)
    blocks = [m for m in model.modules() if isinstance(m, MogaBlock)]
    rates = [block.drop_path.drop_prob for block in blocks]
    assert rates == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])


def test_width_that_cannot_be_shared_is_refused():
    with pytest.raises(ValueError, match=r"widths must be multiples of 8, got 12"):
        MogaNet((12, 16, 16, 16), (1, 1, 1, 1), (2, 2, 2, 2), 5)
