"""Parameter groups: which tensors decay, and what LARS and LAMB do with the others."""

import pytest
import torch
from torch import nn

from switch_ema import SwitchEMA
from switch_ema.bench.optimizers.catalog import create_optimizer
from switch_ema.bench.optimizers.groups import exempt_names, parameter_groups
from switch_ema.bench.optimizers.overrides import change_optimizer
from switch_ema.bench.spec import Change, Spec, parse_spec
from switch_ema.bench.stacking.modules import Stacked

LR, DECAY = 0.5, 0.1


class Net(nn.Module):
    """One tensor of each kind that published recipes exempt, and one that decays."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([[3.0, 4.0]]))
        self.bias = nn.Parameter(torch.tensor([2.0]))
        self.cls_token = nn.Parameter(torch.ones(1, 1, 2))
        self.pos_embed = nn.Parameter(torch.ones(1, 3, 2))
        self.mask_token = nn.Parameter(torch.ones(1, 1, 2))
        self.gamma = nn.Parameter(torch.ones(1, 2, 1, 1))
        self.relative_position_bias_table = nn.Parameter(torch.ones(9, 2))
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)


def step(spec: str, gradient: float) -> Net:
    model = Net()
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, gradient)
    create_optimizer(parse_spec(spec), model, decay_all=False).step()
    return model


def test_exempt_tensors_are_those_of_the_published_recipes():
    trained = {name for name, p in Net().named_parameters() if p.requires_grad}
    assert exempt_names(Net()) == trained - {"weight"}
    (every,) = parameter_groups(Net(), decay_all=True)
    assert len(every["params"]) == len(trained)


def test_only_the_weight_decays():
    """With a gradient of zero, AdamW multiplies by 1 - lr * decay, or keeps."""
    model = step(f"adamw:lr={LR},weight_decay={DECAY}", 0.0)
    torch.testing.assert_close(model.weight, (1 - LR * DECAY) * Net().weight)
    for name in exempt_names(model):
        torch.testing.assert_close(model.state_dict()[name], Net().state_dict()[name])


@pytest.mark.zoo
def test_lars_adapts_the_rate_of_the_weight_only():
    """``trust * |w| / (|g| + decay * |w|) * (g + decay * w)``; otherwise ``g``."""
    trust = 0.01
    model = step(f"lars:lr={LR},momentum=0,weight_decay={DECAY},trust_coeff={trust}", 1)
    weight, gradient = Net().weight, torch.ones(1, 2)
    # |w| = 5 and |g| = sqrt 2.
    ratio = trust * 5 / (2**0.5 + DECAY * 5)
    moved = LR * ratio * (gradient + DECAY * weight)
    torch.testing.assert_close(model.weight, weight - moved)
    torch.testing.assert_close(model.bias, Net().bias - LR)
    torch.testing.assert_close(model.pos_embed, Net().pos_embed - LR)


@pytest.mark.zoo
def test_lamb_adapts_the_rate_of_the_weight_only():
    """Adam's first update is the sign; ``decay * w`` is added before rescaling."""
    model = step(f"lamb:lr={LR},weight_decay={DECAY},eps=0.0", 1.0)
    weight = Net().weight
    update = torch.ones(1, 2) + DECAY * weight
    moved = LR * 5 / update.norm() * update
    torch.testing.assert_close(model.weight, weight - moved)
    torch.testing.assert_close(model.bias, Net().bias - LR)
    torch.testing.assert_close(model.gamma, Net().gamma - LR)


def test_a_changed_weight_decay_stays_zero_where_it_was():
    optimizer = create_optimizer(Spec("adamw"), Net(), decay_all=False)
    change_optimizer(optimizer, [Change("weight_decay", 0.3)])
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.3, 0.0]


@pytest.mark.parametrize("spec", ["adamw:lr=0.1,weight_decay=0.5", "sgd:lr=0.1"])
def test_a_stack_has_the_groups_of_a_network_and_trains_alike(spec):
    """In a stack a bias has two dimensions, but it is still a bias."""

    def make(model):
        return create_optimizer(parse_spec(spec), model, decay_all=False)

    torch.manual_seed(0)
    alone = [nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4)) for _ in range(2)]
    stack = Stacked(alone)
    optimizer = stack.make_optimizer(make)
    assert [len(group["params"]) for group in optimizer.param_groups] == [1, 3]
    optimizers = [make(model) for model in alone]
    average = SwitchEMA(stack, optimizer, decay=0.5)
    averages = [
        SwitchEMA(model, own, decay=0.5)
        for model, own in zip(alone, optimizers, strict=True)
    ]
    for _ in range(3):
        x = torch.randn(2, 5, 3)
        stack(x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        for model, own, part in zip(alone, optimizers, x, strict=True):
            model(part).square().sum().backward()
            own.step()
            own.zero_grad()
    average.end_epoch()
    for index, model in enumerate(alone):
        averages[index].end_epoch()
        state = stack.state_of(stack.state_dict(), index)
        for name, tensor in model.state_dict().items():
            torch.testing.assert_close(state[name], tensor, atol=1e-6, rtol=1e-6)
