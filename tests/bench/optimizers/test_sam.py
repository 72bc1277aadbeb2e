"""SAM in detail, and steps of wrapped optimizers."""

import pytest
import torch
from torch import Tensor
from torch.optim import Optimizer

from switch_ema import EMA
from switch_ema.bench.optimizers.catalog import create_optimizer
from switch_ema.bench.optimizers.sam import SAM
from switch_ema.bench.optimizers.step import has_modes, set_mode, take_step
from switch_ema.bench.spec import Spec, parse_spec
from tests.bench.optimizers.test_catalog import (
    One,
    assert_same,
    every_sam,
    gradients,
    regression_model,
    train,
)


@pytest.mark.parametrize(
    ("adaptive", "expected"),
    [
        # Loss w^2/2 at 2, gradient 2: up by rho to 2.5, where it is 2.5.
        (False, 2 - 0.1 * 2.5),
        # Up by rho * w^2 g / |w g| = rho * w to 3, where the gradient is 3.
        (True, 2 - 0.1 * 3.0),
    ],
)
def test_sam_by_hand(adaptive, expected):
    model = One(torch.tensor([2.0]))
    optimizer = SAM(
        torch.optim.SGD(model.parameters(), lr=0.1), rho=0.5, adaptive=adaptive
    )

    def compute() -> Tensor:
        optimizer.zero_grad()
        loss = model.weight.square().sum() / 2
        loss.backward()
        return loss

    compute()
    optimizer.first_step()
    compute()
    optimizer.second_step()
    assert model.weight.item() == pytest.approx(expected)

    model.weight.data.fill_(2.0)
    assert optimizer.step(compute).item() == 2.0
    assert model.weight.item() == pytest.approx(expected)


def test_sam_with_radius_zero_is_its_base():
    models = regression_model(), regression_model()
    for model, spec in zip(models, ("sam:rho=0,lr=0.3", "sgd:lr=0.3"), strict=True):
        train(model, create_optimizer(parse_spec(spec), model), range(5))
    assert_same(*models)


@every_sam
def test_sam_shares_groups_and_state_with_its_base(spec):
    model = regression_model()
    sam = create_optimizer(parse_spec(spec), model)
    assert isinstance(sam, SAM)
    train(model, sam, range(2))
    sam.load_state_dict(sam.state_dict())
    assert sam.param_groups is sam.base.param_groups and sam.state is sam.base.state
    sam.param_groups[0]["lr"] = 0.0
    before = model[0].weight.detach().clone()
    train(model, sam, range(2, 4))
    assert torch.equal(model[0].weight, before)


def test_sam_takes_its_passes_in_order():
    model = regression_model()
    sam = create_optimizer(Spec("sam"), model)
    before = model[0].weight.detach().clone()
    with pytest.raises(RuntimeError, match=r"call first_step\(\) first"):
        sam.second_step()
    gradients(model)()
    sam.first_step()
    assert not torch.equal(model[0].weight, before)
    with pytest.raises(RuntimeError, match=r"first_step\(\) was called twice"):
        sam.first_step()
    sam.restore()
    assert torch.equal(model[0].weight, before)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_the_second_pass_leaves_the_running_statistics_alone(momentum):
    model = regression_model(momentum=momentum)
    train(model, create_optimizer(Spec("sam"), model), range(1))
    once = regression_model(momentum=momentum)
    gradients(once, seed=0)()
    for name, buffer in once[1].named_buffers():
        assert torch.equal(model[1].get_buffer(name), buffer), name
    assert model[1].track_running_stats


@pytest.mark.parametrize("by_closure", [False, True])
def test_a_failing_second_pass_changes_nothing(by_closure):
    model = regression_model()
    sam = create_optimizer(Spec("sam"), model)
    ema = EMA(model, sam)
    passes = iter([gradients(model)])
    before = model[0].weight.detach().clone()

    def compute() -> Tensor:
        for first in passes:
            return first()
        raise FloatingPointError("second pass")

    with pytest.raises(FloatingPointError, match="second pass"):
        sam.step(compute) if by_closure else take_step(sam, model, compute)
    assert torch.equal(model[0].weight, before)
    assert model[1].track_running_stats and ema.steps == 0
    train(model, sam, range(3))
    assert ema.steps == 3


class SkippingWrapper(Optimizer):
    """Accelerate's wrapper when its gradient scaler has found an overflow."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad()

    def step(self, closure: None = None) -> None:
        pass


def test_a_skipped_step_restores_the_weights():
    model = regression_model()
    before = model[0].weight.detach().clone()
    wrapper = SkippingWrapper(create_optimizer(Spec("sam"), model))
    take_step(wrapper, model, gradients(model))
    assert torch.equal(model[0].weight, before)


def test_a_wrapper_is_asked_for_the_modes_of_what_it_wraps():
    model = regression_model()
    assert not has_modes(SkippingWrapper(create_optimizer(Spec("sgd"), model)))
    inner = create_optimizer(Spec("schedulefree-sgd"), model)
    set_mode(SkippingWrapper(inner), training=False)
    assert not inner.param_groups[0]["train_mode"]
