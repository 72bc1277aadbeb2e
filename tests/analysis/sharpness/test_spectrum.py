"""Eigenvalues and traces, against dense differentiation and known spectra."""

import curvlinops
import pytest
import torch
from torch import Tensor, nn

from switch_ema.analysis.sharpness.curvature import LossSurface, hessian_matrix
from switch_ema.analysis.sharpness.spectrum import (
    Estimate,
    hessian_trace,
    top_eigenvalues,
)

from .test_curvature import classify, data, dense_hessian, network


class Point(nn.Module):
    """Parameters without a network around them, in two tensors."""

    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        self.first = nn.Parameter(weights[:2].clone())
        self.rest = nn.Parameter(weights[2:].clone())

    def forward(self) -> Tensor:
        return torch.cat([self.first, self.rest])


def quadratic(spectrum: Tensor, at: Tensor | None = None) -> tuple[LossSurface, Tensor]:
    """Return ``w' A w / 2`` for a rotated ``A`` with these eigenvalues, and ``A``."""
    spectrum = spectrum.double()
    generator = torch.Generator().manual_seed(7)
    drawn = torch.randn(len(spectrum), len(spectrum), generator=generator).double()
    axes = torch.linalg.qr(drawn).Q
    matrix = axes @ torch.diag(spectrum) @ axes.T
    model = Point(torch.zeros_like(spectrum) if at is None else at.double())
    surface = LossSurface(model, lambda m, b: m() @ b @ m() / 2, [matrix])
    return surface, matrix


def test_eigenvalues_and_trace_equal_dense_differentiation():
    model, batch = network().train(), data(30)
    surface = LossSurface(model, classify, [batch])
    expected = torch.linalg.eigvalsh(dense_hessian(model, batch)).flip(0)
    assert surface.size > 20  # Lanczos, not the whole matrix
    found = top_eigenvalues(surface, 4)
    assert found == pytest.approx(expected[:4].tolist(), rel=1e-6)
    exact = hessian_trace(surface, None)
    assert exact.mean == pytest.approx(expected.sum().item(), rel=1e-6)
    assert (exact.error, exact.draws) == (0, 0)


def test_float32_models_come_close():
    model, (x, y) = network(), data(30)
    exact = top_eigenvalues(LossSurface(model, classify, [(x, y)]), 3)
    single = LossSurface(model.float(), classify, [(x.float(), y)])
    assert top_eigenvalues(single, 3) == pytest.approx(exact, rel=1e-4)


def test_the_largest_eigenvalues_are_the_most_positive():
    surface, _ = quadratic(torch.cat([torch.tensor([-50.0, 9, 4]), torch.zeros(27)]))
    assert top_eigenvalues(surface, 2) == pytest.approx((9, 4))


def test_crowded_eigenvalues_are_told_apart():
    spectrum = torch.linspace(0, 1, 200).double()
    surface, _ = quadratic(spectrum)
    assert top_eigenvalues(surface, 3) == pytest.approx(
        spectrum.flip(0)[:3].tolist(), rel=1e-9
    )


@pytest.mark.parametrize("size", [3, 40])
def test_repeated_and_vanishing_eigenvalues(size):
    surface, _ = quadratic(torch.full((size,), 2.0))
    assert top_eigenvalues(surface, 3) == pytest.approx([2, 2, 2])
    surface, _ = quadratic(torch.zeros(size))
    assert top_eigenvalues(surface, 3) == (0, 0, 0)


def test_small_models_have_fewer_eigenvalues():
    surface, _ = quadratic(torch.tensor([1.0, 5.0, 3.0]))
    assert top_eigenvalues(surface, 5) == pytest.approx((5, 3, 1))


def test_same_seed_same_numbers():
    surface, _ = quadratic(torch.linspace(-1, 4, 60))
    state = torch.get_rng_state()
    assert top_eigenvalues(surface, 3) == top_eigenvalues(surface, 3)
    assert hessian_trace(surface, 5) == hessian_trace(surface, 5)
    assert hessian_trace(surface, 5) != hessian_trace(surface, 5, seed=1)
    assert torch.equal(torch.get_rng_state(), state)


def test_trace_estimate_is_unbiased_and_its_error_honest():
    surface, matrix = quadratic(torch.linspace(-1, 4, 60))
    estimates = [hessian_trace(surface, 5, seed=seed) for seed in range(100)]
    means = torch.tensor([estimate.mean for estimate in estimates])
    spread = means.std().item()
    assert abs(means.mean().item() - matrix.trace().item()) < 4 * spread / 10
    typical = torch.tensor([e.error**2 for e in estimates]).mean().sqrt().item()
    assert typical == pytest.approx(spread, rel=0.25)


def test_trace_estimate_is_exact_for_low_rank_as_that_of_curvlinops():
    surface, _ = quadratic(torch.cat([torch.tensor([5.0, 3, 1]), torch.zeros(57)]))
    estimate = hessian_trace(surface, 4)
    assert estimate.draws == 4
    assert estimate.mean == pytest.approx(9, rel=1e-9)
    assert estimate.error < 1e-9
    peer = curvlinops.hutchpp_trace(hessian_matrix(surface), 12)
    assert estimate.mean == pytest.approx(peer.item(), rel=1e-9)


def test_trace_is_exact_where_that_is_no_dearer():
    surface, matrix = quadratic(torch.arange(70.0))  # more columns than one block
    expected = pytest.approx(matrix.trace().item())
    assert hessian_trace(surface, 24) == Estimate(expected, 0, 0)


def test_bad_input():
    surface, _ = quadratic(torch.ones(30))
    with pytest.raises(ValueError, match="count must be"):
        top_eigenvalues(surface, 0)
    with pytest.raises(ValueError, match="draws must be"):
        hessian_trace(surface, 1)
