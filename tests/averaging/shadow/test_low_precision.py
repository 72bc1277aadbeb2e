"""Models in bfloat16 and float16, and shadows in bfloat16."""

import copy

import pytest
import torch
from torch import Tensor, nn

from switch_ema import EMA, SwitchEMA, constant
from tests.averaging.helpers import assert_same, batches, network, sgd, train_step

HALVES = [torch.bfloat16, torch.float16]


def layer(dtype: torch.dtype) -> nn.Linear:
    """Small, with a matrix and a vector, which are averaged by different kernels."""
    return nn.Linear(6, 5).to(dtype)


@torch.no_grad()
def nudge(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        step = torch.randn(parameter.shape, generator=generator)
        parameter.add_(0.1 * step.to(parameter.dtype))


def exact(live: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.double() for name, tensor in live.items()}


@pytest.mark.parametrize("every", [1, 10])
@pytest.mark.parametrize("dtype", HALVES)
def test_a_float32_shadow_of_a_half_precision_model_is_exact(dtype, every):
    model = layer(dtype)
    ema = EMA(model, decay=constant(0.999), update_every=every)
    expected = exact(model.state_dict())
    for step in range(1, 201):
        nudge(model, step)
        ema.update()
        if step % every == 0:
            for name, live in model.state_dict().items():
                expected[name].lerp_(live.double(), 1 - 0.999**every)
    for name, shadow in ema.state_dict()["shadow"].items():
        assert shadow.dtype == torch.float32
        torch.testing.assert_close(shadow.double(), expected[name], rtol=0, atol=1e-5)
        # Not what rounding at every step would give.
        assert not torch.equal(shadow, shadow.to(dtype).float())


@pytest.mark.parametrize("shadow", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dtype", HALVES)
def test_a_switch_rounds_the_live_weights_and_keeps_the_shadow(dtype, shadow):
    model = layer(dtype)
    sema = SwitchEMA(model, decay=constant(0.9), dtype=shadow)
    for step in range(20):
        nudge(model, step)
        sema.update()
    before = {n: t.clone() for n, t in sema.state_dict()["shadow"].items()}
    live = {n: t.clone() for n, t in model.state_dict().items()}
    rounded = {name: tensor.to(dtype) for name, tensor in before.items()}
    with sema.averaged():
        assert_same(dict(model.state_dict()), rounded)
    assert_same(dict(model.state_dict()), live)
    assert sema.end_epoch()
    assert_same(dict(model.state_dict()), rounded)
    assert_same(sema.state_dict()["shadow"], before)


@pytest.mark.parametrize("dtype", HALVES)
def test_a_bfloat16_shadow_of_a_half_precision_model_moves(dtype):
    """At this decay an update is far below the last place of bfloat16."""
    model = layer(dtype)
    nn.init.constant_(model.weight, 1.0)
    ema = EMA(model, decay=constant(0.9999), dtype=torch.bfloat16)
    nn.init.constant_(model.weight, 2.0)
    for _ in range(2000):
        ema.update()
    shadow = ema.state_dict()["shadow"]["weight"]
    assert shadow.dtype == torch.bfloat16
    moved = shadow.float().mean().item() - 1
    assert moved == pytest.approx(1 - 0.9999**2000, abs=0.01)


@pytest.mark.parametrize(("signal", "limit"), [(1.0, 0.01), (0.0, 0.02)])
def test_a_bfloat16_shadow_follows_a_training(signal, limit):
    """Least squares by SGD, for 10,000 steps, within 1% where it learns something.

    Dithering profits from updates that resemble the one before. Where labels are
    noise alone they do not, and the error grows like a random walk.
    """
    x = torch.randn(256, 32)
    y = signal * x @ torch.randn(32, 32) + torch.randn(256, 32)
    model = nn.Linear(32, 32, bias=False)
    float32 = EMA(model, decay=constant(0.9999))
    bfloat16 = EMA(model, decay=constant(0.9999), dtype=torch.bfloat16)
    largest = 0.0
    for step in range(10_000):
        batch = torch.randint(256, (8,))
        with torch.no_grad():
            error = x[batch] @ model.weight.T - y[batch]
            model.weight -= 2e-3 * error.T @ x[batch] / 8
        float32.update()
        bfloat16.update()
        if step % 500 == 499:
            a, b = (e.averaged_state_dict()["weight"] for e in (bfloat16, float32))
            largest = max(largest, ((a - b).norm() / b.norm()).item())
    assert b.norm() > 0.5 * model.weight.norm()
    assert 0 < largest < limit


def test_a_bfloat16_shadow_resumes_bit_for_bit():
    def build():
        model = network()
        optimizer = sgd(model)
        averager = SwitchEMA(
            model, optimizer, decay=constant(0.99), dtype=torch.bfloat16
        )
        return model, optimizer, averager

    def train(parts, seed):
        for batch in batches(5, seed):
            train_step(*parts[:2], batch)
        assert parts[2].end_epoch()

    whole = build()
    train(whole, seed=0)
    kept = copy.deepcopy([part.state_dict() for part in whole])
    resumed = build()
    for part, state in zip(resumed, kept, strict=True):
        part.load_state_dict(state)
    for parts in (whole, resumed):
        train(parts, seed=1)
    assert_same(whole[0].state_dict(), resumed[0].state_dict())
    assert_same(whole[2].state_dict()["shadow"], resumed[2].state_dict()["shadow"])
