"""The model and its closed forms."""

import numpy as np
import pytest

from switch_ema.theory.quadratic import (
    NoisyQuadratic,
    SwitchSettings,
    paper_variances,
    stationary,
)


def random_model(size=3, seed=0):
    """Curvature and noise that do not commute."""
    generator = np.random.default_rng(seed)
    a, g = generator.standard_normal((2, size, size))
    return NoisyQuadratic(a @ a.T + np.eye(size), g @ g.T)


def test_loss_by_hand():
    # (1, 2) with A = [[2, 1], [1, 4]]: (2 + 2*2 + 16) / 2 = 11
    model = NoisyQuadratic([[2.0, 1.0], [1.0, 4.0]], np.eye(2))
    assert model.loss(np.array([1.0, 2.0])) == 11.0
    # plus half the trace of A: (2 + 4) / 2
    assert model.expected_loss(np.array([1.0, 2.0]), np.eye(2)) == 14.0


def test_targets_give_gradient_noise():
    model = NoisyQuadratic.from_targets(np.diag([2.0, 3.0]), np.diag([1.0, 0.5]))
    assert np.allclose(model.gradient_noise, np.diag([4.0, 4.5]))


@pytest.mark.parametrize("rate", [0.05, 0.4, 0.9])
@pytest.mark.parametrize("decay", [0.0, 0.5, 0.99])
def test_matrix_forms_agree_with_the_papers_formulas(rate, decay):
    curvatures, targets = np.array([0.1, 1.0, 2.0]), np.array([1.0, 0.3, 2.0])
    model = NoisyQuadratic.from_targets(np.diag(curvatures), np.diag(targets))
    found = stationary(model, rate, decay)
    expected = paper_variances(curvatures, targets, rate, decay)
    for matrix, formula in zip(
        (found.sgd, found.ema, found.sema), expected, strict=True
    ):
        assert np.allclose(matrix, np.diag(formula), rtol=1e-10, atol=1e-13)


def test_matrix_forms_are_fixed_points_without_a_common_basis():
    model, rate, decay = random_model(), 0.1, 0.9
    found = stationary(model, rate, decay)
    step = np.eye(3) - rate * model.curvature
    noise = rate**2 * model.gradient_noise
    assert np.allclose(found.sgd, step @ found.sgd @ step + noise, atol=1e-12)
    slow = np.eye(3) - (1 - decay) * rate * model.curvature
    noise = ((1 - decay) * rate) ** 2 * model.gradient_noise
    assert np.allclose(found.sema, slow @ found.sema @ slow + noise, atol=1e-12)
    # EMA is a decayed sum; Cov(w_t, w_{t-k}) = step^k V.
    total = np.zeros((3, 3))
    power = np.eye(3)
    for lag in range(2000):
        share = (1 - decay) / (1 + decay) * decay**lag
        part = power @ found.sgd
        total += share * (part if lag == 0 else part + part.T)
        power = power @ step
    assert np.allclose(found.ema, total, atol=1e-12)


def test_momentum_agrees_with_the_known_scalar_formula():
    rate, mu, a, g = 0.3, 0.8, 1.7, 0.6
    found = stationary(NoisyQuadratic.diagonal([a], [g]), rate, 0.9, momentum=mu)
    h = rate * a
    expected = rate * g * (1 + mu) / (a * (1 - mu) * (2 * (1 + mu) - h))
    assert found.sgd[0, 0] == pytest.approx(expected, rel=1e-10)


def test_the_proofs_sema_is_slow_sgd_also_with_momentum():
    model = random_model()
    sema = stationary(model, 0.1, 0.9, momentum=0.5).sema
    slow = stationary(model, 0.1 * (1 - 0.9), 0.9, momentum=0.5).sgd
    assert np.allclose(sema, slow, rtol=1e-9)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NoisyQuadratic(np.ones(3), np.eye(3)), "curvature must be a square"),
        (lambda: NoisyQuadratic([[1, 2], [0, 1]], np.eye(2)), "must be symmetric"),
        (lambda: NoisyQuadratic.diagonal([1.0, 0.0]), "curvature must be positive def"),
        (lambda: NoisyQuadratic.diagonal([1.0], [-1.0]), "gradient_noise must be posi"),
        (lambda: NoisyQuadratic(np.eye(2), np.eye(3)), "must have curvature's shape"),
        (lambda: NoisyQuadratic([[np.nan]], [[1.0]]), "finite"),
        (lambda: SwitchSettings(decay=1.0), "decay must be in"),
        (lambda: SwitchSettings(decay=0.9, momentum=1.5), "momentum must be in"),
        (lambda: SwitchSettings(decay=0.9, every=0), "every must be a whole number"),
        (lambda: stationary(NoisyQuadratic.diagonal([1.0]), 2.0, 0.9), "too large"),
        (lambda: stationary(NoisyQuadratic.diagonal([1.0]), 0.0, 0.9), "rate must be"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(ValueError, match=message):
        make()
