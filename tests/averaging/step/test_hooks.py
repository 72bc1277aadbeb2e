"""Which optimizer steps count."""

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

from switch_ema import EMA, FusedSGD, Steps, SwitchEMA, constant
from tests.averaging.helpers import batches, loss_of, network, sgd, train_step


def scaled_step(model, optimizer, scaler, poison: bool) -> None:
    optimizer.zero_grad()
    scaler.scale(loss_of(model, next(batches(1)))).backward()
    if poison:
        next(model.parameters()).grad.fill_(float("inf"))
    scaler.step(optimizer)
    scaler.update()


@pytest.mark.parametrize("fused", [False, True])
def test_steps_that_a_grad_scaler_skips_do_not_count(fused):
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=fused)
    ema = EMA(model, optimizer, decay=constant(0.9))
    scaler = torch.amp.GradScaler("cpu")
    for poison in (False, True, False, True):
        scaled_step(model, optimizer, scaler, poison)
    assert ema.steps == 2


def test_gradient_accumulation_counts_optimizer_steps_only():
    model = network()
    optimizer = sgd(model)
    ema = EMA(model, optimizer)
    for i, batch in enumerate(batches(6), start=1):
        loss_of(model, batch).backward()
        if i % 3 == 0:
            optimizer.step()
            optimizer.zero_grad()
    assert ema.steps == 2


class ClippedSGD(torch.optim.SGD):
    """A subclass that calls super().step(): torch runs the hooks at both levels."""

    def step(self, closure=None):
        loss = super().step(closure)
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.clamp_(-0.05, 0.05)
        return loss


def test_a_step_that_calls_super_counts_once_and_after_everything():
    sgd(network())  # an instance of the base class has patched its step, too
    model = network()
    optimizer = ClippedSGD(model.parameters(), lr=0.1)
    ema = EMA(model, optimizer, decay=lambda step: 0.0)
    train_step(model, optimizer, next(batches(1)))
    assert ema.steps == 1
    average = ema.averaged_state_dict()["stem.weight"]
    assert average.abs().max() < 0.0501  # the clipped weights were averaged


def test_an_exception_in_a_step_does_not_disturb_later_ones():
    model = network()
    optimizer = ClippedSGD(model.parameters(), lr=0.1)
    ema = EMA(model, optimizer)
    with pytest.raises(ZeroDivisionError):
        optimizer.step(lambda: 1 / 0)
    assert ema.steps == 0
    train_step(model, optimizer, next(batches(1)))
    assert ema.steps == 1


def test_several_optimizers_make_one_round():
    model = network()
    stem = torch.optim.SGD(model.stem.parameters(), lr=0.1)
    body = torch.optim.SGD(model.body.parameters(), lr=0.1)
    ema = EMA(model, [stem, body])
    every = EMA(model, [stem, body], count="all")
    order = stem, stem, body, body, stem
    for optimizer, *steps in zip(order, (0, 2, 2, 2, 3), (0, 0, 1, 1, 2), strict=True):
        loss_of(model, next(batches(1))).backward()
        optimizer.step()
        assert [ema.steps, every.steps] == steps


def test_an_unfinished_round_survives_a_resume():
    def build():
        model = network()
        optimizers = [
            torch.optim.SGD(part.parameters(), lr=0.1)
            for part in (model.stem, model.body)
        ]
        return EMA(model, optimizers), *optimizers

    ema, stem, _ = build()
    stem.step()
    resumed, _, body = build()
    resumed.load_state_dict(ema.state_dict())
    body.step()
    assert resumed.steps == 1


def test_several_averagers_share_a_model_and_an_optimizer():
    model, lone = network(), network()
    optimizer, lone_optimizer = sgd(model), sgd(lone)
    averagers = [EMA(model, optimizer, decay=constant(d)) for d in (0.5, 0.9, 0.99)]
    alone = EMA(lone, lone_optimizer, decay=constant(0.9))
    for batch in batches(5):
        train_step(model, optimizer, batch)
        train_step(lone, lone_optimizer, batch)
    averages = [a.averaged_state_dict()["stem.weight"] for a in averagers]
    assert torch.equal(averages[1], alone.averaged_state_dict()["stem.weight"])
    assert not torch.equal(averages[0], averages[2])


def test_blocks_of_several_averagers_nest_and_state_stays_right():
    model = network()
    optimizer = sgd(model)
    first, second = (EMA(model, optimizer, decay=constant(d)) for d in (0.5, 0.99))
    for batch in batches(3):
        train_step(model, optimizer, batch)
    name = "stem.weight"
    live = first.live_state_dict()[name]
    one, two = (a.averaged_state_dict()[name] for a in (first, second))
    with first.averaged():
        with second.averaged():
            assert torch.equal(model.stem.weight, two)
            assert torch.equal(first.averaged_state_dict()[name], one)
            assert torch.equal(second.live_state_dict()[name], live)
        assert torch.equal(model.stem.weight, one)
    assert torch.equal(model.stem.weight, live)


def test_optimizer_state_is_kept_or_reset_at_a_switch():
    for policy, left in (("keep", True), ("reset", False)):
        model = network()
        optimizer = torch.optim.AdamW(model.parameters())
        sema = SwitchEMA(model, optimizer, optimizer_state=policy)
        train_step(model, optimizer, next(batches(1)))
        sema.end_epoch()
        assert bool(optimizer.state) is left
        train_step(model, optimizer, next(batches(1)))  # and it goes on
        assert optimizer.state[model.scale]["step"].item() == (2 if left else 1)


def test_learning_rate_schedulers_do_not_hide_the_step():
    model = network()
    optimizer = sgd(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    ema = EMA(model, optimizer)
    train_step(model, optimizer, next(batches(1)))
    scheduler.step()
    assert ema.steps == 1


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW, FusedSGD])
def test_the_step_by_which_torch_makes_an_optimizers_state_does_not_count(kind):
    """It steps at a learning rate of 0 to save a fresh optimizer, or a plain SGD."""
    model, lone = network(), network()
    optimizer, other = (kind(one.parameters(), lr=0.1) for one in (model, lone))
    ema, alone = (
        EMA(model, optimizer, decay=constant(0.5)),
        EMA(lone, other, decay=constant(0.5)),
    )
    for batch in batches(3):
        get_optimizer_state_dict(model, optimizer)
        with ema.averaged():
            get_optimizer_state_dict(model, optimizer)
        train_step(model, optimizer, batch)
        optimizer.zero_grad()
        train_step(lone, other, batch)
    assert ema.steps == 3
    if kind is not torch.optim.AdamW:  # torch leaves that step in its moments
        for name, average in ema.averaged_state_dict().items():
            assert torch.equal(average, alone.averaged_state_dict()[name]), name


def test_lbfgs_counts_one_step_for_many_evaluations():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5)
    ema = EMA(model, optimizer)

    def closure():
        optimizer.zero_grad()
        loss = (model(torch.ones(4, 2)) - 3).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert ema.steps == 1


def test_switching_by_steps_happens_inside_the_hook():
    model = network()
    optimizer = sgd(model)
    sema = SwitchEMA(model, optimizer, switch_every=Steps(2))
    for batch in batches(5):
        train_step(model, optimizer, batch)
    assert (sema.steps, sema.switches) == (5, 2)


def test_sparse_gradients_are_no_obstacle():
    model = nn.Embedding(5, 2, sparse=True)
    optimizer = torch.optim.SparseAdam(model.parameters())
    ema = EMA(model, optimizer, decay=constant(0.9))
    before = model.weight.detach().clone()
    model(torch.tensor([1, 3])).sum().backward()
    optimizer.step()
    moved = 0.9 * before + 0.1 * model.weight.detach()
    torch.testing.assert_close(ema.averaged_state_dict()["weight"], moved)


def test_something_that_is_no_optimizer_is_refused():
    with pytest.raises(TypeError, match=r"optimizer must be a torch\.optim"):
        EMA(network(), object())


@pytest.mark.parametrize("optimizer_class", [torch.optim.SGD, FusedSGD])
def test_a_compiled_step_counts_and_averages(optimizer_class):
    averages = []
    for compiles in (False, True):
        model = network()
        optimizer = optimizer_class(model.parameters(), lr=0.1)
        sema = SwitchEMA(model, optimizer, decay=constant(0.9))
        step = optimizer.step
        if compiles:
            step = torch.compile(lambda step=step: step(), backend="aot_eager")
        for batch in batches(4):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            step()
        assert sema.steps == 4
        averages.append(sema.averaged_state_dict())
    for name, value in averages[0].items():
        torch.testing.assert_close(averages[1][name], value)


class PlainSGD(torch.optim.Optimizer):
    """Unlike torch's own optimizers, it has a step without a break of the graph."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(parameter.grad, alpha=-group["lr"])


def test_a_step_of_one_graph_is_counted_by_update():
    averages = []
    for compiles in (False, True):
        model = nn.Linear(2, 2)
        nn.init.ones_(model.weight)
        optimizer = PlainSGD(model.parameters())
        ema = EMA(model, None if compiles else optimizer, decay=constant(0.5))
        step = optimizer.step
        if compiles:
            step = torch.compile(step, backend="aot_eager", fullgraph=True)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(3, 2)).sum().backward()
            step()
            if compiles:
                ema.update()
        averages.append(ema.averaged_state_dict()["weight"])
    torch.testing.assert_close(*averages)


def test_a_hook_in_one_graph_says_what_to_do_instead():
    torch._dynamo.reset()  # graphs made without the hook would be used again
    model = nn.Linear(2, 2)
    optimizer = PlainSGD(model.parameters())
    EMA(model, optimizer)
    model(torch.ones(3, 2)).sum().backward()
    step = torch.compile(optimizer.step, backend="aot_eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"call update\(\) after"):
        step()


def test_a_resumed_averager_waits_only_for_optimizers_that_there_are():
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    both = [torch.optim.SGD(part.parameters(), lr=0.1) for part in model]
    averager = EMA(model, both)
    both[0].step()
    state = averager.state_dict()
    assert state["waiting_for"] == [1]
    one = torch.optim.SGD(model.parameters(), lr=0.1)
    ema = EMA(model, one)
    ema.load_state_dict(state)
    one.step()
    one.step()
    assert ema.steps == 2


def test_an_optimizer_whose_step_is_wrapped_late_loses_no_step():
    """As with timm's Lookahead, which does not call ``Optimizer.__init__``."""
    timm_optim = pytest.importorskip("timm.optim")
    model = nn.Linear(2, 2)
    base = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = timm_optim.Lookahead(base)
    ema = EMA(model, optimizer)
    for _ in range(3):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    assert ema.steps == 3


class SAM(torch.optim.Optimizer):
    """Two steps that are called one by one, as the published SAM has them."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})
        self.base_optimizer = torch.optim.SGD(self.param_groups, lr=lr)

    def first_step(self):
        pass

    def second_step(self):
        self.base_optimizer.step()

    def step(self, closure):
        self.first_step()
        closure()
        self.second_step()


@pytest.mark.filterwarnings("error")
def test_sam_is_counted_however_it_is_called():
    model = nn.Linear(2, 2)
    optimizer = SAM(model.parameters(), lr=0.1)
    ema = EMA(model, optimizer, decay=constant(0.5))

    def backward():
        model(torch.ones(1, 2)).sum().backward()

    backward()
    optimizer.first_step()
    backward()
    optimizer.second_step()
    assert ema.steps == 1
    optimizer.step(backward)
    assert ema.steps == 2
    with ema.averaged(), pytest.raises(RuntimeError, match="inside averaged"):
        optimizer.first_step()
    ema.detach()
    optimizer.second_step()
    assert ema.steps == 2
    assert "second_step" not in vars(optimizer)


def test_an_optimizer_of_another_model_is_refused():
    other = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    with pytest.raises(ValueError, match="has none of its parameters"):
        EMA(nn.Linear(2, 2), other)


def test_another_optimizer_is_noticed_in_the_same_epoch_and_can_be_attached():
    model = nn.Linear(2, 2)
    first = torch.optim.SGD(model.parameters(), lr=0.1)
    ema = EMA(model, first, decay=constant(0.5))

    def step(optimizer):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    step(first)
    second = torch.optim.Adam(model.parameters(), lr=0.1)
    with pytest.warns(UserWarning, match="Adam stepped parameters .* attach_to"):
        step(second)
    step(second)  # once is enough
    assert ema.steps == 1
    with pytest.raises(RuntimeError, match=r"Already attached .* call detach\(\)"):
        ema.attach_to(second)
    ema.detach()
    ema.attach_to(second)
    step(second)
    assert ema.steps == 2


@pytest.mark.filterwarnings("error")
def test_an_optimizer_of_other_parameters_is_none_of_its_business():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    body = torch.optim.SGD(model[0].parameters(), lr=0.1)
    head = torch.optim.SGD(model[1].parameters(), lr=0.1)
    ema = EMA(model, body)
    model(torch.ones(1, 2)).sum().backward()
    head.step()
    body.step()
    assert ema.steps == 1
