"""Schedules: values worked out by hand, resuming, and what is refused."""

import io
import math

import pytest
import torch
from torch import nn

from switch_ema.bench.errors import UsageError
from switch_ema.bench.optimizers.catalog import OPTIMIZERS, create_optimizer
from switch_ema.bench.optimizers.schedules import (
    SCHEDULES,
    check_schedule,
    create_schedule,
)
from switch_ema.bench.optimizers.step import take_step
from switch_ema.bench.spec import Spec

every_schedule = pytest.mark.parametrize("name", SCHEDULES)


def sgd(lr: float = 1.0) -> torch.optim.Optimizer:
    return torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=lr)


def rates(optimizer, schedule, steps: int) -> list[float]:
    """The learning rate of each step and the one after."""
    values = [optimizer.param_groups[0]["lr"]]
    for _ in range(steps):
        optimizer.step()
        schedule.step()
        values.append(optimizer.param_groups[0]["lr"])
    return values


@pytest.mark.parametrize(
    ("schedule", "warmup", "expected"),
    [
        ("constant", 0, {0: 1, 4: 1, 8: 1}),
        ("inverse-sqrt", 2, {0: 0.5, 1: 1, 7: 0.5}),
        ("constant", 4, {0: 0.25, 1: 0.5, 3: 1, 4: 1, 8: 1}),
        ("step", 0, {0: 1, 3: 1, 4: 0.1, 5: 0.1, 6: 0.01, 8: 0.01}),
        ("step:factor=0.5", 2, {0: 0.5, 1: 1, 3: 1, 4: 0.5, 6: 0.25}),
        (Spec("step", {"milestones": (0.25,)}), 0, {1: 1, 2: 0.1, 8: 0.1}),
        ("cosine", 0, {0: 1, 2: 0.5 + math.sqrt(0.125), 4: 0.5, 8: 0}),
        ("cosine:final=0.2", 0, {0: 1, 4: 0.6, 8: 0.2}),
        ("cosine", 4, {0: 0.25, 3: 1, 4: 1, 6: 0.5, 8: 0}),
        ("cosine", 8, {0: 0.125, 7: 1, 8: 1}),
        # YOLOX: squares of 1/4, 2/4, ...; the cosine ends after 6 of 8 steps.
        (
            "cosine:final=0.05,hold=0.25,warmup_power=2",
            4,
            {0: 0.0625, 1: 0.25, 2: 0.5625, 3: 1, 4: 1, 5: 0.525, 6: 0.05, 8: 0.05},
        ),
        # Warm-up is the rise: 1/25 to 1 in steps 0, 1, 2; then down in 3 to 7.
        ("one-cycle", 3, {0: 0.04, 1: 0.52, 2: 1, 7: 4e-6, 8: 4e-6}),
        ("one-cycle:start=0.5,end=0", 1, {0: 1, 7: 0}),
    ],
)
def test_values_by_hand(schedule, warmup, expected):
    optimizer = sgd()
    made = create_schedule(schedule, optimizer, total_steps=8, warmup_steps=warmup)
    values = rates(optimizer, made, 8)
    for step, value in expected.items():
        assert values[step] == pytest.approx(value, abs=1e-12), step


@pytest.mark.parametrize("total", [10, 33, 100])
def test_one_cycle_is_torchs(total):
    ours, theirs = sgd(0.3), sgd(0.3)
    one = create_schedule("one-cycle", ours, total_steps=total)
    other = torch.optim.lr_scheduler.OneCycleLR(
        theirs, max_lr=0.3, total_steps=total, cycle_momentum=False
    )
    assert rates(ours, one, total - 1) == pytest.approx(
        rates(theirs, other, total - 1), rel=1e-9
    )


def test_one_cycle_can_cycle_momentum_by_hand():
    optimizer = torch.optim.Adam([nn.Parameter(torch.zeros(1))], lr=0.3)
    schedule = create_schedule(
        "one-cycle:cycle_momentum=True", optimizer, total_steps=21, warmup_steps=5
    )
    found = [optimizer.param_groups[0]["betas"]]
    for _ in range(23):
        optimizer.step()
        schedule.step()
        found.append(optimizer.param_groups[0]["betas"])
    # Half cosines over 4 steps down and 16 up: (1 - cos(pi / 4)) / 2 = 0.146447.
    by_hand = {0: 0.95, 1: 0.95 - 0.0146447, 2: 0.9, 4: 0.85, 8: 0.85 + 0.0146447}
    by_hand |= {12: 0.9, 20: 0.95, 23: 0.95}
    for step, value in by_hand.items():
        assert found[step] == pytest.approx((value, 0.999), abs=1e-7), step


def cycled(kind):
    options = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    return kind([nn.Parameter(torch.zeros(1))], lr=0.3, **options)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_cycled_momentum_is_torchs_and_resumes(kind):
    text = "one-cycle:cycle_momentum=True"
    ours, theirs = cycled(kind), cycled(kind)
    one = create_schedule(text, ours, total_steps=20)
    other = torch.optim.lr_scheduler.OneCycleLR(theirs, max_lr=0.3, total_steps=20)
    key = "betas" if kind is torch.optim.AdamW else "momentum"
    for step in range(19):
        for optimizer, schedule in ((ours, one), (theirs, other)):
            optimizer.step()
            schedule.step()
        (mine,), (torchs,) = ours.param_groups, theirs.param_groups
        assert mine[key] == pytest.approx(torchs[key], rel=1e-9)
        assert mine["lr"] == pytest.approx(torchs["lr"], rel=1e-9)
        if step == 9:
            file = io.BytesIO()
            torch.save([ours.state_dict(), one.state_dict()], file)
            file.seek(0)
            ours = cycled(kind)
            one = create_schedule(text, ours, total_steps=20)
            for part, state in zip((ours, one), torch.load(file), strict=True):
                part.load_state_dict(state)


@every_schedule
@pytest.mark.parametrize("total", [1, 2, 3])
def test_short_trainings_and_overtime_stay_in_range(name, total):
    optimizer = sgd()
    schedule = create_schedule(name, optimizer, total_steps=total)
    values = rates(optimizer, schedule, total + 3)
    assert all(0 <= value <= 1 for value in values) and max(values[:total]) == 1
    assert len({*values[total:]}) == 1


@every_schedule
def test_groups_keep_their_ratio(name):
    params = [{"params": [nn.Parameter(torch.zeros(1))], "lr": lr} for lr in (0.1, 0.4)]
    optimizer = torch.optim.SGD(params, lr=1.0)
    schedule = create_schedule(name, optimizer, total_steps=9, warmup_steps=3)
    for _ in range(8):
        low, high = (group["lr"] for group in optimizer.param_groups)
        assert 4 * low == pytest.approx(high)
        optimizer.step()
        schedule.step()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("name", "optimizer"),
    [
        (name, info.name)
        for name in SCHEDULES
        for info in OPTIMIZERS.values()
        if name == "constant" or not info.has_modes
    ],
)
def test_resumes_bit_for_bit(name, optimizer):
    x = torch.randn(8, 3)

    def make():
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        made = create_optimizer(Spec(optimizer), model)
        schedule = create_schedule(name, made, total_steps=10, warmup_steps=4)
        return model, made, schedule

    def train(model, made, schedule, steps):
        def gradients():
            loss = model(x).square().mean()
            loss.backward()
            return loss

        for _ in range(steps):
            take_step(made, model, gradients)
            schedule.step()

    whole = make()
    train(*whole, 6)
    file = io.BytesIO()
    torch.save([part.state_dict() for part in whole], file)
    file.seek(0)
    train(*whole, 4)

    resumed = make()
    for part, state in zip(resumed, torch.load(file, weights_only=True), strict=True):
        part.load_state_dict(state)
    train(*resumed, 4)
    assert torch.equal(whole[0].weight, resumed[0].weight)
    assert whole[2].get_last_lr() == resumed[2].get_last_lr()


def test_sam_steps_with_the_scheduled_rate():
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.constant_(model.weight, 2.0)
    sam = create_optimizer(Spec("sam", {"lr": 0.1, "momentum": 0, "rho": 0.5}), model)
    schedule = create_schedule("step", sam, total_steps=2)

    def gradients():
        loss = model.weight.square().sum() / 2
        loss.backward()
        return loss

    # 2 - 0.1 * 2.5 = 1.75, then at a tenth of the rate 1.75 - 0.01 * 2.25.
    for expected in (1.75, 1.7275):
        take_step(sam, model, gradients)
        schedule.step()
        assert model.weight.item() == pytest.approx(expected)


def test_warmup_of_a_schedule_free_optimizer_is_its_own():
    weights = []
    for own, ours in ((5, 0), (0, 5)):
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        spec = Spec("schedulefree-sgd", {"lr": 0.5, "warmup_steps": own})
        optimizer = create_optimizer(spec, model)
        schedule = create_schedule(
            "constant", optimizer, total_steps=9, warmup_steps=ours
        )
        x = torch.randn(8, 3)
        for _ in range(9):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            schedule.step()
        weights.append(model.weight.detach())
    torch.testing.assert_close(*weights)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ("linear", r"unknown schedule 'linear'; known are constant, step, "),
        ("cosin", r"unknown schedule 'cosin'; did you mean cosine\? Known are cons"),
        ("cosine:factor=1", r"cosine has no option factor; valid ones are final, "),
        ("constant:final=1", r"constant has no option final; valid ones are none\."),
        ("cosine:final=low", r"cosine:final=low: unsupported operand"),
        ("cosine:final=-1", r"cosine:final=-1 would make the learning rate negative"),
        ("cosine:hold=1", r"hold must be in \[0, 1\), got 1"),
        ("step:factor=-1", r"step:factor=-1 would make the learning rate negative"),
    ],
)
def test_bad_schedules_say_what_is_valid(schedule, message):
    with pytest.raises(UsageError, match=message):
        create_schedule(schedule, sgd(), total_steps=8)


def test_bad_numbers_of_steps_are_refused():
    with pytest.raises(UsageError, match="fit into the 3 steps of training, got 4"):
        create_schedule("cosine", sgd(), total_steps=3, warmup_steps=4)
    with pytest.raises(ValueError, match="total_steps must be a whole number"):
        create_schedule("cosine", sgd(), total_steps=0)
    with pytest.raises(ValueError, match="warmup_steps must be a whole number"):
        create_schedule("cosine", sgd(), total_steps=3, warmup_steps=-1)


def test_schedule_free_optimizers_are_their_own_schedule():
    optimizer = create_optimizer(Spec("schedulefree-adamw"), nn.Linear(1, 1))
    with pytest.raises(UsageError, match=r"schedule-free optimizer needs .* 'cosine'"):
        create_schedule("cosine", optimizer, total_steps=8)
    with pytest.raises(UsageError, match=r"schedule-free optimizer needs .* 'step'"):
        check_schedule("step", schedule_free=True)
    assert check_schedule("constant", schedule_free=True) == Spec("constant")
