"""Which steps of several optimizers count."""

import copy

import pytest
import torch
from torch import nn

from switch_ema import EMA, SwitchEMA, constant
from switch_ema.averaging.step.rounds import Round


def two_parts(**options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in model]
    return model, optimizers, EMA(model, optimizers, **options)


def step(model, optimizer) -> None:
    model(torch.ones(3, 2)).square().sum().backward()
    optimizer.step()
    model.zero_grad()


PATTERNS = {
    "in turn": "01" * 20,
    "in turn, the other way round": "10" * 20,
    "100 steps of one and 5 of the other": ("0" * 20 + "1") * 5,
    "five steps of a critic for one of a generator": "000001" * 10,
    "a discriminator that starts late": "0" * 30 + "01" * 10,
    "one at a time": "0" * 10 + "1" * 10,
}
COUNTS = {
    # Pattern: steps by count="round", "any", "all", 0 and 1.
    "in turn": (20, 40, 20, 20, 20),
    "in turn, the other way round": (20, 40, 20, 20, 20),
    "100 steps of one and 5 of the other": (100, 105, 5, 100, 5),
    "five steps of a critic for one of a generator": (50, 60, 10, 50, 10),
    "a discriminator that starts late": (40, 50, 10, 40, 10),
    # The first step of the second one belongs to the last round of the first.
    "one at a time": (19, 20, 1, 10, 10),
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_how_often_each_rule_counts(pattern):
    for count, expected in zip(
        ("round", "any", "all", 0, 1), COUNTS[pattern], strict=True
    ):
        model, optimizers, ema = two_parts(count=count)
        for number in PATTERNS[pattern]:
            step(model, optimizers[int(number)])
        ema.end_epoch()
        assert ema.steps == expected, count


def test_a_round_that_a_second_step_ends_has_the_weights_before_it():
    """A discriminator that never steps leaves the average as if it was not there."""
    model, optimizers, ema = two_parts(decay=constant(0.5))
    alone, others, reference = two_parts(decay=constant(0.5), count=0)
    for taken in range(1, 6):
        step(model, optimizers[0])
        step(alone, others[0])
        # From the second step on nobody else is waited for.
        assert ema.steps == (0 if taken == 1 else taken)
    for name, value in reference.averaged_state_dict().items():
        assert torch.equal(ema.averaged_state_dict()[name], value)


def test_the_end_of_an_epoch_ends_the_round():
    model, optimizers, _ = two_parts()
    sema = SwitchEMA(model, optimizers, decay=constant(0.5))
    step(model, optimizers[0])
    assert sema.steps == 0
    assert sema.end_epoch()
    assert sema.steps == 1


@pytest.mark.parametrize("count", ["round", "all"])
def test_a_reset_ends_the_round_without_counting_it(count):
    model, optimizers, ema = two_parts(count=count)
    for number in (0, 1, 0):
        step(model, optimizers[number])
    ema.reset()
    step(model, optimizers[1])
    assert ema.steps == 0
    step(model, optimizers[0])
    assert ema.steps == 1


@pytest.mark.parametrize("count", ["round", "all", "any", 1])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_round_goes_on_after_a_resume_at_any_point(pattern, count):
    order = [int(number) for number in PATTERNS[pattern]][-12:]
    model, optimizers, ema = two_parts(count=count)
    saved = []
    for number in order:
        saved.append((copy.deepcopy(model.state_dict()), ema.state_dict(), ema.steps))
        step(model, optimizers[number])
    for i, (weights, state, _) in enumerate(saved):
        model, optimizers, resumed = two_parts(count=count)
        model.load_state_dict(weights)
        resumed.load_state_dict(state)
        for j, number in enumerate(order[i:], start=i):
            assert resumed.steps == saved[j][2]
            step(model, optimizers[number])
        assert resumed.steps == ema.steps
        for name, value in ema.averaged_state_dict().items():
            assert torch.equal(resumed.averaged_state_dict()[name], value)


def test_a_state_of_one_optimizer_resumes_with_two():
    model, optimizers, resumed = two_parts()
    before = copy.deepcopy(model)
    alone = torch.optim.SGD(before.parameters(), lr=0.1)
    saved = EMA(before, alone)
    step(before, alone)
    resumed.load_state_dict(saved.state_dict())
    step(model, optimizers[0])
    assert resumed.steps == 1
    step(model, optimizers[1])
    assert resumed.steps == 2


def test_an_optimizer_counts_by_itself_or_its_number():
    model, optimizers, _ = two_parts()
    second = EMA(model, optimizers, count=optimizers[1])
    for number in (0, 0, 1, 0):
        step(model, optimizers[number])
    assert second.steps == 1
    second.detach()
    second.attach_to(optimizers)  # goes on with the second one
    step(model, optimizers[0])
    assert second.steps == 1
    second.detach()
    second.attach_to(optimizers, count="any")
    step(model, optimizers[0])
    assert second.steps == 2


@pytest.mark.parametrize(
    ("count", "message"),
    [
        ("some", "count must be 'round' or 'any' or 'all', got 'some'"),
        (2, "number of an optimizer, from 0 to 1, got 2"),
        (-1, "got -1"),
        (True, "got True"),
        (1.5, "or its number, got float"),
        (torch.optim.SGD([nn.Parameter(torch.ones(1))]), "or its number, got SGD"),
    ],
)
def test_what_cannot_count_is_refused(count, message):
    with pytest.raises(ValueError, match=message):
        two_parts(count=count)


@pytest.mark.parametrize(("count", "who"), [("all", r"1 \(SGD\)"), (1, r"1 \(SGD\)")])
def test_an_epoch_without_a_count_says_who_is_waited_for(count, who):
    model, optimizers, ema = two_parts(count=count)
    step(model, optimizers[0])
    with pytest.warns(UserWarning, match=f"waits for optimizer {who}; .*count='round'"):
        ema.end_epoch()


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.common, self.rare = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x, rare):
        return self.common(x) + (self.rare(x) if rare else 0)


def test_one_optimizer_for_each_parameter_counts_once_for_each_backward():
    model = Branches()
    optimizers = [torch.optim.SGD([p], lr=0.1) for p in model.parameters()]
    by_parameter = dict(zip(model.parameters(), optimizers, strict=True))
    for parameter in by_parameter:
        parameter.register_post_accumulate_grad_hook(lambda p: by_parameter[p].step())
    ema = EMA(model, optimizers)
    for i in range(20):
        model.zero_grad()
        model(torch.ones(1, 2), rare=i % 8 == 3).sum().backward()
        assert i <= ema.steps <= i + 1
    ema.end_epoch()
    assert ema.steps == 20


class Released(torch.optim.Optimizer):
    """Steps one parameter as soon as it has its gradient, as optimi's optimizers do."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})
        self.optimizer_accumulation = False

    @torch.no_grad()
    def step(self, closure=None, param=None):
        every = [p for group in self.param_groups for p in group["params"]]
        for one in every if param is None else [param]:
            if one.grad is not None and not self.optimizer_accumulation:
                one.add_(one.grad, alpha=-0.1)


def release(model, optimizer):
    def hook(parameter):
        optimizer.step(param=parameter)
        parameter.grad = None

    return [p.register_post_accumulate_grad_hook(hook) for p in model.parameters()]


@pytest.mark.parametrize("calls_step", [False, True])
def test_gradient_release_counts_once_for_each_backward(calls_step):
    model = Branches()
    optimizer = Released(model.parameters())
    handles = release(model, optimizer)
    ema = EMA(model, optimizer)
    for i in range(10):
        model(torch.ones(1, 2), rare=i % 4 == 2).sum().backward()
        if calls_step:
            optimizer.step()  # of a trainer that does not know; it does nothing
        assert i <= ema.steps <= i + 1
    ema.end_epoch()
    assert ema.steps == 10
    optimizer.optimizer_accumulation = True
    model(torch.ones(1, 2), rare=False).sum().backward()
    optimizer.optimizer_accumulation = False
    assert ema.steps == 10
    for handle in handles:
        handle.remove()
    model(torch.ones(1, 2), rare=False).sum().backward()
    optimizer.step()
    assert ema.steps == 11


def test_gradient_release_goes_on_after_a_resume():
    def build():
        torch.manual_seed(0)
        model = Branches()
        optimizer = Released(model.parameters())
        release(model, optimizer)
        return model, EMA(model, optimizer, decay=constant(0.5))

    model, ema = build()
    saved = []
    for i in range(6):
        saved.append((copy.deepcopy(model.state_dict()), ema.state_dict()))
        model(torch.ones(1, 2), rare=i == 2).square().sum().backward()
    for start, (weights, state) in enumerate(saved):
        other, resumed = build()
        other.load_state_dict(weights)
        resumed.load_state_dict(state)
        for i in range(start, 6):
            other(torch.ones(1, 2), rare=i == 2).square().sum().backward()
        assert resumed.steps == ema.steps
        for name, value in ema.averaged_state_dict().items():
            assert torch.equal(resumed.averaged_state_dict()[name], value)


def test_who_rests_is_waited_for_again_once_it_steps():
    one = Round(range(3))
    assert [one.after_step(member) for member in (0, 1)] == [False, False]
    assert one.waiting_for == {2}
    assert one.before_step(0)
    assert (one.waiting_for, one.resting) == ({0, 1}, {2})
    assert [one.after_step(member) for member in (0, 1)] == [False, True]
    assert not one.after_step(2)  # too late for that round, in time for the next
    assert (one.waiting_for, one.resting) == ({0, 1, 2}, set())
