"""Windows of a million steps: averages follow what is less than a unit per step."""

import copy
import math

import pytest
import torch
from torch import nn

from switch_ema import (
    EMA,
    SWA,
    FusedAdamW,
    FusedSGD,
    PostHocEMA,
    Steps,
    SwitchEMA,
    constant,
    fraction,
)
from switch_ema.averaging.schedules.decay import (
    MERGED_WEIGHT,
    SMALLEST_WEIGHT,
    merged_weight,
)
from switch_ema.averaging.schedules.windows import sigma_rel_to_gamma
from switch_ema.contrib import TailEMA
from tests.averaging.helpers import assert_same

DRIFT = 0.01
LENGTH = 300_000
START = 10 << 20
NEVER = Steps(1 << 40)


class Weights(nn.Module):
    """Weights of all sizes, and statistics that move with them."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.randn(8, 8, generator=generator))
        self.register_buffer("running_mean", self.weight.detach().clone())
        self.start = self.weight.detach().double()

    def move_by(self, share):
        """Go a share of the way from the start to a drift of 1%."""
        value = self.start * (1 + DRIFT * share)
        self.weight.data.copy_(value)
        self.running_mean.copy_(value)


def missed(averager, model, share):
    """How far an average is from where it should be, as a share of its way there."""
    expected = model.start * DRIFT * share
    found = averager.averaged_tensors()
    errors = [found[name] - model.start - expected for name in model.state_dict()]
    return max((error.norm() / expected.norm()).item() for error in errors)


def assert_follows_a_drift(decay, start):
    model = Weights()
    ema = EMA(model, decay=decay)
    ema._counters.steps = start
    share = 0.0
    for step in range(1, LENGTH + 1):
        if step % 16 == 0:
            model.move_by(step / LENGTH)
        ema.update()
        share += (1 - ema.current_decay) * (step / LENGTH - share)
    assert missed(ema, model, share) < 0.02


@pytest.mark.usefixtures("arithmetic")
def test_a_drift_of_one_percent_is_followed_after_a_million_steps():
    assert_follows_a_drift(fraction(), 10**6)


@pytest.mark.parametrize(
    ("decay", "start"), [(fraction(), 10**7), (constant(0.99999), 10**6)]
)
def test_a_drift_of_one_percent_is_followed_in_wider_windows(decay, start):
    assert_follows_a_drift(decay, start)


def swa(model, folder):
    averager = SWA(model, every=Steps(1))
    averager._count = START
    return averager


METHODS = {
    "ema": lambda model, folder: EMA(model),
    "every second step": lambda model, folder: EMA(model, update_every=2),
    "flat": lambda model, folder: EMA(model, flat=True),
    "float64": lambda model, folder: EMA(model, dtype=torch.float64),
    "switch-ema": lambda model, folder: SwitchEMA(
        model, decay=fraction(), switch_every=NEVER
    ),
    "tail-ema": lambda model, folder: TailEMA(model, share=1.0),
    "swa": swa,
    "posthoc-ema": lambda model, folder: PostHocEMA(model, folder=folder, every=NEVER),
}


@pytest.mark.usefixtures("arithmetic")
@pytest.mark.parametrize("method", METHODS)
def test_a_jump_is_followed_in_every_method(method, tmp_path):
    """Each of these updates alone is below half a unit in the last place."""
    model = Weights()
    averager = METHODS[method](model, tmp_path)
    averager._counters.steps = START
    model.move_by(1)
    steps = 1 << 14
    for _ in range(steps):
        averager.update()
    left = {"swa": 1, "posthoc-ema": 1 + sigma_rel_to_gamma(0.05)}
    # A share of n ** -k is left where each update has a weight of k / n.
    power = left.get(method, math.log(2) / 0.1)
    share = 1 - (START / (START + steps)) ** power
    assert missed(averager, model, share) < 0.02


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, FusedAdamW, FusedSGD])
def test_a_resumed_run_goes_on_bit_for_bit(optimizer):
    def build():
        model = Weights()
        stepper = optimizer(model.parameters(), lr=1e-3)
        return model, stepper, EMA(model, stepper, decay=constant(0.99998))

    def train(parts, seed, steps):
        model, stepper, _ = parts
        generator = torch.Generator().manual_seed(seed)
        for _ in range(steps):
            model.weight.grad = torch.randn(8, 8, generator=generator)
            stepper.step()

    whole, resumed = build(), build()
    train(whole, 0, 45)  # between two updates, which are 32 steps apart
    for part, other in zip(resumed, whole, strict=True):
        part.load_state_dict(copy.deepcopy(other.state_dict()))
    for parts in (whole, resumed):
        train(parts, 1, 45)
    assert_same(whole[0].state_dict(), resumed[0].state_dict())
    assert_same(whole[2].state_dict()["shadow"], resumed[2].state_dict()["shadow"])
    assert not torch.equal(whole[2].averaged_tensors()["weight"], Weights().weight)


def test_buffers_that_are_copied_are_those_of_the_latest_step():
    model = nn.BatchNorm1d(2)
    ema = EMA(model, decay=constant(0.99999))
    for _ in range(3):
        model(torch.randn(4, 2))
        ema.update()
    assert ema.averaged_state_dict()["num_batches_tracked"] == 3


@pytest.mark.parametrize("weight", [1.0, 0.5, 0.001, SMALLEST_WEIGHT, 0.0])
def test_ordinary_weights_are_left_as_they_are(weight):
    assert all(merged_weight(weight, count) == weight for count in (1, 2, 3, 64))
    assert SMALLEST_WEIGHT < 1 - 0.9999  # a decay in common use


@pytest.mark.parametrize("weight", [7.9e-5, 1e-5, 6.9e-7, 1e-9])
def test_merged_updates_weigh_as_much_as_all_of_them(weight):
    count = 1 << 22
    merged = [merged_weight(weight, n) for n in range(count - (1 << 20), count)]
    kept = math.prod(1 - one for one in merged)
    assert kept == pytest.approx((1 - weight) ** len(merged), rel=2 * MERGED_WEIGHT)
    assert all(
        one == 0 or MERGED_WEIGHT * 0.99 < one < 2 * MERGED_WEIGHT for one in merged
    )
