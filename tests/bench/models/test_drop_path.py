import pytest
import torch

from switch_ema.bench.models.drop_path import DropPath, rising_rates


def test_whole_examples_are_dropped_and_the_mean_stays():
    x = torch.ones(10_000, 2, 3)
    y = DropPath(0.2)(x)
    assert (y == y[:, :1, :1]).all()
    assert set(y.unique().tolist()) == {0.0, 1.25}
    assert y.mean().item() == pytest.approx(1, abs=0.02)


def test_evaluation_and_rate_0_change_nothing():
    x = torch.randn(4, 3)
    assert DropPath(0.5).eval()(x) is x
    assert DropPath(0.0)(x) is x


def test_one_block_is_never_dropped():
    assert rising_rates(0.3, 1) == [0.0]
