"""Values, gradients and Hessian of the loss, against dense differentiation."""

import copy

import pytest
import torch
from curvlinops import HessianLinearOperator
from torch import Tensor, nn
from torch.func import functional_call, hessian
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from switch_ema.analysis.sharpness.curvature import LossSurface, hessian_matrix


def network() -> nn.Module:
    """A small network with batch norm that has seen data, and dropout."""
    model = nn.Sequential(
        nn.Linear(4, 6),
        nn.Tanh(),
        nn.BatchNorm1d(6),
        nn.Dropout(0.5),
        nn.Linear(6, 3),
    ).double()
    for _ in range(3):
        model(torch.randn(20, 4).double() + 1)
    return model


def data(n: int = 12) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 4).double(), torch.randint(3, (n,))


def classify(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return cross_entropy(model(batch[0]), batch[1])


def dense_hessian(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Differentiate the loss of one vector that holds all parameters."""
    model = copy.deepcopy(model).eval()
    named = dict(model.named_parameters())

    def loss(vector: Tensor) -> Tensor:
        parts = vector.split([p.numel() for p in named.values()])
        weights = {
            name: part.view_as(p)
            for (name, p), part in zip(named.items(), parts, strict=True)
        }
        return cross_entropy(functional_call(model, weights, batch[0]), batch[1])

    flat = torch.cat([p.detach().flatten() for p in named.values()])
    found: Tensor = hessian(loss)(flat)
    return found


def test_hessian_equals_dense_differentiation_and_curvlinops():
    model, batch = network().eval(), data()
    surface = LossSurface(model, classify, [batch])
    expected = dense_hessian(model, batch)
    peer = HessianLinearOperator(
        model, nn.CrossEntropyLoss(), list(model.parameters()), [batch]
    )
    vectors = torch.randn(surface.size, 3).double()
    torch.testing.assert_close(hessian_matrix(surface), expected)
    torch.testing.assert_close(surface.hessian_product(vectors), expected @ vectors)
    torch.testing.assert_close(surface.hessian_product(vectors), peer @ vectors)
    torch.testing.assert_close(
        surface.hessian_product(vectors[:, 0]), expected @ vectors[:, 0]
    )


def test_gradient_equals_backward():
    model, batch = network().eval(), data()
    value, slope = LossSurface(model, classify, [batch]).gradient()
    loss = classify(model, batch)
    loss.backward()
    torch.testing.assert_close(value, loss.item())
    torch.testing.assert_close(
        slope, torch.cat([p.grad.flatten() for p in model.parameters()])
    )


def test_unequal_batches_equal_the_whole_set():
    model, (x, y) = network(), data(17)
    whole = LossSurface(model, classify, [(x, y)])
    pieces = zip(x.split([9, 5, 3]), y.split([9, 5, 3]), strict=True)
    parts = LossSurface(model, classify, pieces)  # an iterator is read once
    vector = torch.randn(whole.size).double()
    for _ in range(2):
        assert parts.value() == pytest.approx(whole.value(), rel=1e-12)
        torch.testing.assert_close(parts.gradient(), whole.gradient())
        torch.testing.assert_close(
            parts.hessian_product(vector), whole.hessian_product(vector)
        )


def test_weights_of_batches_can_be_given():
    model = nn.Linear(1, 1, bias=False)
    batches = [torch.full((1, 1), 1.0), torch.full((1, 1), 5.0)]
    surface = LossSurface(
        model, lambda m, x: m(x).sum(), batches, weight=lambda x: 3 if x < 2 else 1
    )
    assert surface.value(torch.tensor([1.0])) == pytest.approx((3 * 1 + 1 * 5) / 4)


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("measure", ["value", "gradient", "hessian_product"])
def test_nothing_of_the_model_or_the_generators_changes(measure, fails):
    model = network().train()
    model[0].eval()
    model[4].bias.requires_grad_(False)
    model[0].weight.grad = torch.ones_like(model[0].weight)
    model.register_buffer("calls", torch.zeros(()))
    before = copy.deepcopy(model.state_dict())
    modes = [module.training for module in model.modules()]
    generator = torch.get_rng_state()

    def loss(model, batch):
        assert not any(module.training for module in model.modules())
        model.calls += 1
        torch.rand(3)
        if fails:
            raise KeyError("in the middle")
        return classify(model, batch)

    surface = LossSurface(model, loss, [data(), data()])
    torch.set_rng_state(generator)
    elsewhere = surface.weights + 1
    arguments = (elsewhere,) if measure != "hessian_product" else (elsewhere,) * 2
    if fails:
        with pytest.raises(KeyError):
            getattr(surface, measure)(*arguments)
    else:
        getattr(surface, measure)(*arguments)

    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert [module.training for module in model.modules()] == modes
    assert [p.requires_grad for p in model.parameters()] == [True] * 5 + [False]
    assert model[0].weight.grad.eq(1).all()
    assert all(p.grad is None for p in list(model.parameters())[1:])
    assert torch.equal(torch.get_rng_state(), generator)


def test_frozen_parameters_are_left_out_and_tied_ones_count_once():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)).double()
    model[1].weight = model[0].weight
    model[0].bias.requires_grad_(False)
    batches = [torch.ones(1, 3).double()]
    surface = LossSurface(model, lambda m, x: m(x).square().mean(), batches)
    assert surface.size == 9 + 3

    def loss(weight: Tensor) -> Tensor:
        hidden = batches[0] @ weight.T + model[0].bias.detach()
        return (hidden @ weight.T + model[1].bias.detach()).square().mean()

    expected = hessian(loss)(model[0].weight.detach()).reshape(9, 9)
    torch.testing.assert_close(hessian_matrix(surface)[:9, :9], expected)


def test_random_losses_draw_the_same_everywhere():
    model = nn.Linear(2, 1)

    def loss(model, x):
        return model(x + torch.randn_like(x)).square().mean()

    surface = LossSurface(model, loss, [torch.ones(4, 2)])
    before = surface.value()
    torch.manual_seed(5)
    assert surface.value() == surface.gradient()[0] == before


def test_weights_follow_the_model():
    model = nn.Linear(2, 1)
    surface = LossSurface(model, lambda m, x: m(x).mean(), [torch.zeros(1, 2)])
    with torch.no_grad():
        model.bias.fill_(7)
    assert surface.value() == 7
    assert surface.weights[-1] == 7


def test_attention_can_be_differentiated_twice():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.mix = nn.Linear(4, 12)

        def forward(self, x):
            return scaled_dot_product_attention(*self.mix(x).chunk(3, -1))

    surface = LossSurface(
        Attention(), lambda m, x: m(x).square().mean(), [torch.randn(2, 1, 5, 4)]
    )
    assert surface.hessian_product(torch.ones(surface.size)).abs().sum() > 0


def test_works_without_gradients_enabled_and_where_the_loss_is_linear():
    model = nn.Linear(2, 1)
    surface = LossSurface(model, lambda m, x: m(x).mean(), [torch.ones(3, 2)])
    with torch.no_grad():
        torch.testing.assert_close(surface.gradient()[1], torch.ones(3))
        assert surface.hessian_product(torch.ones(3)).eq(0).all()


def test_bad_input():
    model, batch = network(), data()
    with pytest.raises(ValueError, match="at least one batch"):
        LossSurface(model, classify, [])
    with pytest.raises(ValueError, match="weight must be above 0"):
        LossSurface(model, classify, [batch], weight=lambda batch: 0)
    with pytest.raises(ValueError, match="require gradients"):
        LossSurface(nn.ReLU(), classify, [batch])
    surface = LossSurface(model, lambda m, b: m(b[0]), [batch])
    with pytest.raises(ValueError, match="one number"):
        surface.value()
    with pytest.raises(ValueError, match=r"vector must have the shape"):
        surface.value(torch.zeros(2))
    with pytest.raises(ValueError, match="vectors must have"):
        surface.hessian_product(torch.zeros(2))
    # A loss that uses another model than it is given would measure nothing.
    other = network()
    surface = LossSurface(model, lambda _, b: classify(other, b), [batch])
    with pytest.raises(ValueError, match="model that it is given"):
        surface.gradient()
