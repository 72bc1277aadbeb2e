"""Soups: which ingredients go in, and what comes out."""

import math
import os
import sys

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from switch_ema.averaging.offline.soup import greedy_soup, uniform_soup
from tests.averaging.helpers import assert_same, copy_of, network


def state(*values, **others):
    return {"w": torch.tensor(values), **others}


def test_uniform_soup_is_the_mean():
    # (1 + 2 + 6) / 3 = 3 and (0 + 0 - 3) / 3 = -1
    soup = uniform_soup([state(1.0, 0.0), state(2.0, 0.0), state(6.0, -3.0)])
    assert soup["w"].tolist() == [3.0, -1.0]


def test_files_and_state_dicts_mix_and_load_into_the_model(tmp_path):
    models = [network(seed) for seed in range(3)]
    states = [copy_of(model.state_dict()) for model in models]
    save_file(states[1], tmp_path / "one.safetensors")
    expected = uniform_soup(states)
    for path in (tmp_path / "one.safetensors", str(tmp_path / "one.safetensors")):
        assert_same(uniform_soup([states[0], path, states[2]]), expected)
    models[0].load_state_dict(expected)  # strict: all names are there
    mean = sum(s["stem.weight"].double() for s in states) / 3
    torch.testing.assert_close(
        expected["stem.weight"].double(), mean, rtol=1e-6, atol=0
    )


def test_ingredients_keep_their_values_and_the_soup_shares_no_memory():
    first, second = state(1.0, n=torch.tensor(7)), state(3.0, n=torch.tensor(9))
    soup = uniform_soup([first, second])
    soup["w"].fill_(0)
    soup["n"].fill_(0)
    assert (first["w"].item(), first["n"].item()) == (1.0, 7)
    assert (second["w"].item(), second["n"].item()) == (3.0, 9)


def test_dtypes_and_what_is_not_averaged_are_those_of_the_first():
    first = {"w": torch.tensor([1.0], dtype=torch.bfloat16), "n": torch.tensor(7)}
    second = {"w": torch.tensor([2.0], dtype=torch.float64), "n": torch.tensor(9)}
    soup = uniform_soup([first, second])
    assert soup["w"].dtype == torch.bfloat16 and soup["w"].item() == 1.5
    assert soup["n"].item() == 7
    assert uniform_soup([second, first])["w"].dtype == torch.float64


def test_half_precision_is_summed_exactly():
    # In float16 1 + 2**-11 rounds to 1: a sum in float16 would stay at 1 for ever.
    small = {"w": torch.tensor([2.0**-11], dtype=torch.float16)}
    one = {"w": torch.tensor([1.0], dtype=torch.float16)}
    soup = uniform_soup([one] + [small] * 1023)
    assert soup["w"].item() == pytest.approx((1 + 1023 * 2**-11) / 1024, rel=1e-3)


def test_complex_tensors_are_averaged():
    soup = uniform_soup([{"w": torch.tensor([1 + 2j])}, {"w": torch.tensor([3 - 4j])}])
    assert soup["w"].tolist() == [2 - 1j]


def test_parameters_are_taken_as_values():
    model = nn.Linear(2, 1)
    soup = uniform_soup([dict(model.named_parameters())] * 2)
    assert not soup["weight"].requires_grad
    assert torch.equal(soup["weight"], model.weight)


@pytest.mark.parametrize("higher_is_better", [True, False])
def test_greedy_soup_takes_what_does_no_harm(higher_is_better):
    # The aim is 0 and the score the distance from it, so the order is 2, 1, 0, 3.
    # 1.0 alone -> 1.0;  with -1.5: -0.25 -> 0.25, in;  with 4.0: 3.5/3 -> out;
    # with -5.0: -5.5/3 -> out.
    sign = -1 if higher_is_better else 1
    seen = []

    def evaluate(weights):
        seen.append(weights["w"].item())
        return sign * abs(seen[-1])

    ingredients = [state(4.0), state(-1.5), state(1.0), state(-5.0)]
    found = greedy_soup(ingredients, evaluate, higher_is_better=higher_is_better)
    assert found.chosen == (2, 1)
    assert found.weights["w"].item() == -0.25
    assert found.score == sign * 0.25
    assert found.scores == tuple(sign * s for s in (4.0, 1.5, 1.0, 5.0))
    assert seen == pytest.approx([4.0, -1.5, 1.0, -5.0, -0.25, 3.5 / 3, -5.5 / 3])


def test_an_ingredient_that_changes_nothing_goes_in():
    found = greedy_soup([state(1.0), state(3.0)], lambda weights: 0.5)
    assert found.chosen == (0, 1)
    assert found.weights["w"].item() == 2.0


def test_the_best_ingredient_counts_as_the_first_of_a_greedy_soup():
    ingredients = [state(1.0, n=torch.tensor(7)), state(2.0, n=torch.tensor(9))]
    found = greedy_soup(ingredients, lambda weights: weights["w"].item())
    assert found.chosen == (1,)
    assert found.weights["n"].item() == 9


def test_nan_scores_are_never_chosen():
    def evaluate(weights):
        value = weights["w"].item()
        return math.nan if value in (5.0, 2.0) else value

    # 5 alone is NaN; 3 is the best; 3 with 1 is 2, which is NaN as well.
    found = greedy_soup([state(5.0), state(1.0), state(3.0)], evaluate)
    assert found.chosen == (2,)
    assert found.score == 3.0
    assert math.isnan(found.scores[0])
    with pytest.raises(ValueError, match="NaN for all 2 ingredients"):
        greedy_soup([state(1.0)] * 2, lambda weights: math.nan)


def test_an_infinite_ingredient_that_is_refused_leaves_no_trace():
    def evaluate(weights):
        return 0.0 if weights["w"].isinf().any() else 1.0

    found = greedy_soup([state(1.0), state(math.inf), state(3.0)], evaluate)
    assert found.chosen == (0, 2)
    assert found.weights["w"].item() == 2.0


def test_other_models_are_refused_by_name(tmp_path):
    save_file(state(1.0, 2.0), tmp_path / "other.safetensors")
    ingredients = [state(1.0, b=torch.zeros(1)), tmp_path / "other.safetensors"]
    message = (
        r"other.safetensors belongs to another model than ingredient 0; missing: b. "
        r"of another shape: w is \[2\], expected \[1\]"
    )
    with pytest.raises(ValueError, match=message):
        uniform_soup(ingredients)
    with pytest.raises(ValueError, match=r"ingredient 1 belongs to .* unexpected: b"):
        greedy_soup([state(1.0), ingredients[0]], lambda weights: 0.0)


@pytest.mark.parametrize("cook", [uniform_soup, lambda i: greedy_soup(i, len)])
def test_bad_ingredients(cook, tmp_path):
    with pytest.raises(ValueError, match="at least one"):
        cook([])
    for single in (state(1.0), "model.safetensors", tmp_path):
        with pytest.raises(TypeError, match="list of state dicts or paths"):
            cook(single)
    with pytest.raises(FileNotFoundError):
        cook([tmp_path / "absent.safetensors"])
    (tmp_path / "broken.safetensors").write_bytes(b"this is something else")
    with pytest.raises(ValueError, match=r"broken.safetensors is not a safetensors"):
        cook([tmp_path / "broken.safetensors"])
    os.mkfifo(tmp_path / "pipe.safetensors")
    with pytest.raises(ValueError, match=r"pipe.safetensors is not a regular file"):
        cook([tmp_path / "pipe.safetensors"])


def test_without_safetensors_only_files_are_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    assert uniform_soup([state(1.0)])["w"].item() == 1.0
    with pytest.raises(ImportError, match=r'pip install "switch-ema\[files\]"'):
        uniform_soup(["model.safetensors"])
