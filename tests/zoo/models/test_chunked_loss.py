"""Cross-entropy in chunks: the same values and gradients with fewer logits."""

import pytest
import torch
from torch.nn.functional import cross_entropy, linear

from switch_ema.zoo.models import chunked_loss
from switch_ema.zoo.models.chunked_loss import chunked_cross_entropy


def inputs(dtype, bias=True):
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(37, 6, generator=generator, dtype=dtype, requires_grad=True)
    weight = torch.randn(11, 6, generator=generator, dtype=dtype, requires_grad=True)
    offset = torch.randn(11, generator=generator, dtype=dtype, requires_grad=True)
    targets = torch.randint(11, (37,), generator=generator)
    return features, weight, offset if bias else None, targets


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("most", [1, 50, 11 * 37 - 1])
def test_values_and_gradients_are_those_of_the_whole(
    monkeypatch, most, bias, reduction
):
    features, weight, offset, targets = inputs(torch.double, bias)
    parameters = [features, weight, *([offset] if bias else [])]
    logits = linear(features, weight, offset)
    whole = cross_entropy(logits, targets, reduction=reduction)
    expected = torch.autograd.grad(whole, parameters)
    monkeypatch.setattr(chunked_loss, "_MOST", most)
    loss = chunked_cross_entropy(features, weight, offset, targets, reduction=reduction)
    torch.testing.assert_close(loss.double(), whole, rtol=1e-6, atol=0)
    for found, wanted in zip(
        torch.autograd.grad(loss, parameters), expected, strict=True
    ):
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-9)


def test_chunks_have_a_bounded_number_of_logits(monkeypatch):
    features, weight, offset, targets = inputs(torch.float)
    sizes = []

    def spy(*arguments):
        found = linear(*arguments)
        sizes.append(found.numel())
        return found

    monkeypatch.setattr(chunked_loss, "linear", spy)
    monkeypatch.setattr(chunked_loss, "_MOST", 50)
    loss = chunked_cross_entropy(features, weight, offset, targets)
    assert max(sizes) <= 50 and sum(sizes) == 37 * 11
    loss.backward()
    assert max(sizes) <= 50 and sum(sizes) == 2 * 37 * 11  # computed again


def test_few_logits_are_computed_whole():
    features, weight, offset, targets = inputs(torch.float)
    whole = cross_entropy(linear(features, weight, offset), targets)
    loss = chunked_cross_entropy(features, weight, offset, targets)
    assert torch.equal(loss, whole)


def test_mixed_precision_gives_the_gradients_of_the_whole(monkeypatch):
    gradients = []
    for most in (2**25, 50):
        monkeypatch.setattr(chunked_loss, "_MOST", most)
        features, weight, offset, targets = inputs(torch.float)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = chunked_cross_entropy(features, weight, offset, targets)
        loss.backward()
        gradients.append(weight.grad)
    torch.testing.assert_close(*gradients, rtol=2e-2, atol=1e-3)
