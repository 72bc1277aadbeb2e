"""Every optimizer of the registry keeps the same promises."""

import io
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from switch_ema import EMA, constant
from switch_ema.averaging.registry import METHODS
from switch_ema.bench.errors import UsageError
from switch_ema.bench.optimizers.catalog import (
    OPTIMIZERS,
    check_optimizer,
    create_optimizer,
    optimizer_info,
)
from switch_ema.bench.optimizers.sam import SAM
from switch_ema.bench.optimizers.step import has_modes, set_mode, take_step
from switch_ema.bench.spec import Spec, parse_spec

every_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)
every_sam = pytest.mark.parametrize("spec", ["sam", "sasam", "sam:base=adamw"])


def regression_model(seed: int = 0, momentum: float | None = 0.1) -> nn.Sequential:
    torch.manual_seed(seed)
    norm = nn.BatchNorm1d(8, momentum=momentum)
    return nn.Sequential(nn.Linear(3, 8), norm, nn.Tanh(), nn.Linear(8, 1))


def gradients(model: nn.Module, seed: int = 1) -> Callable[[], Tensor]:
    """Forward and backward on a batch drawn from the seed."""
    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(seed))

    def compute() -> Tensor:
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True).sin())
        loss.backward()
        return loss

    return compute


def train(model: nn.Module, optimizer: Optimizer, steps: range) -> None:
    for step in steps:
        take_step(optimizer, model, gradients(model, seed=step))


def assert_same(first: nn.Module, second: nn.Module) -> None:
    expected = second.state_dict()
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, expected[name]), name


class One(nn.Module):
    """A single parameter."""

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(value.clone())


# The registry


def test_the_registry_is_described_and_imports_nothing_heavy():
    for name, info in OPTIMIZERS.items():
        assert info.name == name and info.description and "lr" not in info.source
        assert info.averaging is None or info.averaging in METHODS
    assert optimizer_info("sasam").averaging == "swa"
    code = "import sys, switch_ema.bench.optimizers.catalog; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "torch" not in done.stdout.split()


@every_optimizer
def test_flags_tell_the_truth(name):
    info = check_optimizer(Spec(name))
    optimizer = create_optimizer(Spec(name), regression_model())
    assert isinstance(optimizer, SAM) == info.two_pass
    assert has_modes(optimizer) == info.has_modes
    expected = OPTIMIZERS["sgd"].defaults if info.two_pass else info.defaults
    assert optimizer.param_groups[0]["lr"] == expected["lr"]


@every_optimizer
def test_elementwise_means_that_stacked_weights_train_as_if_alone(name):
    goal = torch.stack([torch.randn(4, 3), 5 * torch.randn(4, 3)])

    def trained(start: Tensor, goal: Tensor) -> Tensor:
        model = One(start)

        def compute() -> Tensor:
            loss = (model.weight - goal).square().sum()
            loss.backward()
            return loss

        optimizer = create_optimizer(Spec(name, {"lr": 0.01}), model)
        for _ in range(12):
            take_step(optimizer, model, compute)
        return model.weight.detach()

    start = torch.randn(2, 4, 3)
    together = trained(start, goal)
    alone = torch.stack([trained(start[i], goal[i]) for i in range(2)])
    same = torch.allclose(together, alone, rtol=1e-5, atol=1e-6)
    assert same == OPTIMIZERS[name].elementwise


@every_optimizer
def test_descends(name):
    slow = {} if OPTIMIZERS[name].defaults.get("lr", 1) >= 0.1 else {"lr": 0.05}
    for options, share in (({}, 0.99), (slow, 0.5)):
        model = regression_model()
        optimizer = create_optimizer(Spec(name, options), model)
        first = take_step(optimizer, model, gradients(model))
        for _ in range(150):
            last = take_step(optimizer, model, gradients(model))
        assert last < share * first and not last.requires_grad


@every_optimizer
def test_the_first_step_already_goes_downhill(name):
    model = One(torch.tensor([2.0]))

    def compute() -> Tensor:
        loss = model.weight.square().sum()
        loss.backward()
        return loss

    take_step(create_optimizer(Spec(name, {"lr": 0.01}), model), model, compute)
    assert model.weight.item() < 2.0


@every_optimizer
def test_resumes_bit_for_bit(name):
    model = regression_model()
    optimizer = create_optimizer(Spec(name), model)
    train(model, optimizer, range(7))
    file = io.BytesIO()
    torch.save([model.state_dict(), optimizer.state_dict()], file)
    file.seek(0)
    train(model, optimizer, range(7, 15))

    resumed = regression_model(seed=9)
    resumed_optimizer = create_optimizer(Spec(name), resumed)
    weights, state = torch.load(file, weights_only=True)
    resumed.load_state_dict(weights)
    resumed_optimizer.load_state_dict(state)
    train(resumed, resumed_optimizer, range(7, 15))
    assert_same(model, resumed)


@every_optimizer
def test_an_average_sees_each_step_once_and_after_it(name):
    model = regression_model()
    optimizer = create_optimizer(Spec(name), model)
    ema = EMA(model, optimizer, decay=constant(0.75))
    expected = model[0].weight.detach().clone()
    for step in range(1, 14):
        take_step(optimizer, model, gradients(model, seed=step))
        expected.lerp_(model[0].weight.detach(), 0.25)
        assert ema.steps == step
    torch.testing.assert_close(ema.averaged_state_dict()["0.weight"], expected)


def test_modes_exchange_the_weights():
    model = regression_model()
    optimizer = create_optimizer(Spec("schedulefree-adamw"), model)
    train(model, optimizer, range(5))
    training = model[0].weight.detach().clone()
    set_mode(optimizer, training=False)
    assert not torch.allclose(model[0].weight, training, atol=1e-5, rtol=0)
    set_mode(optimizer, training=True)
    torch.testing.assert_close(model[0].weight.detach(), training)
    set_mode(create_optimizer(Spec("sgd"), model), training=False)


# Options


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rmsprop", r"unknown optimizer 'rmsprop'; known are sgd, adam, "),
        ("adam-w", r"unknown optimizer 'adam-w'; did you mean adamw\? Known are sgd"),
        ("sgd:beta=0.9", r"sgd has no option beta; valid ones are lr, momentum, "),
        ("ranger:rho=1", r"ranger has no option rho; valid ones are lr, betas, "),
        (
            "sam:beta=1",
            r"sam has no option beta; valid ones are base, rho, adaptive, lr",
        ),
        ("sam:base=adam,momentum=0.9", r"sam has no option momentum; .*, lr, betas"),
        ("sam:base=what", r"unknown optimizer 'what'; known are sgd, "),
        ("sasam:base=sam", r"sasam cannot have sam as its base"),
        ("sam:base=schedulefree-sgd", r"sam cannot have schedulefree-sgd as its base"),
        ("sgd:lr=-1", r"sgd:lr=-1: Invalid learning rate: -1"),
        ("adan:lr=fast", r"adan:lr=fast: '<=' not supported"),
        ("sam:rho=-1", r"sam:rho=-1: rho must be in \[0, inf\), got -1"),
        ("sam:lr=-1", r"Invalid learning rate: -1"),
    ],
)
def test_bad_specs_say_what_is_valid(text, message):
    with pytest.raises(UsageError, match=message):
        create_optimizer(parse_spec(text), nn.Linear(1, 1))


def test_options_reach_the_class_and_frozen_parameters_are_left_out():
    model = regression_model()
    model[0].requires_grad_(False)
    optimizer = create_optimizer(parse_spec("sam:base=adamw,lr=0.5,rho=2"), model)
    (group,) = optimizer.param_groups
    assert isinstance(optimizer, SAM) and optimizer.rho == 2
    assert type(optimizer.base) is torch.optim.AdamW and group["lr"] == 0.5
    assert {*group["params"]} == {*model[1].parameters(), *model[3].parameters()}


def test_a_missing_library_names_the_extra(monkeypatch):
    for module in ("schedulefree", "timm.optim"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError, match='needs schedulefree: pip install "switch-ema'):
        create_optimizer(Spec("schedulefree-sgd"), nn.Linear(1, 1))
    with pytest.raises(UsageError, match=r"layer_decay needs timm: pip"):
        create_optimizer(Spec("sgd"), nn.Linear(1, 1), layer_decay=0.5)


class Layered(nn.Module):
    """Three layers in an order that timm understands."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.token = nn.Linear(2, 2), nn.Parameter(torch.zeros(1, 2))
        self.blocks = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])

    def group_matcher(self, coarse: bool = False) -> dict:
        return {"stem": r"^stem|token", "blocks": [(r"^blocks\.(\d+)", None)]}

    def no_weight_decay(self) -> set[str]:
        return {"token"}


@pytest.mark.parametrize("name", ["adamw", "sam"])
def test_layer_decay_lowers_the_rate_towards_the_input(name):
    model = Layered()
    spec = Spec(name, {"lr": 0.8, "weight_decay": 0.1})
    groups = create_optimizer(spec, model, layer_decay=0.5).param_groups
    setting = {
        p: (group["lr"], group["weight_decay"])
        for group in groups
        for p in group["params"]
    }
    assert setting[model.stem.weight] == (0.2, 0.1)
    assert setting[model.stem.bias] == setting[model.token] == (0.2, 0.0)
    assert setting[model.blocks[0].weight] == (0.4, 0.1)
    assert setting[model.blocks[1].weight] == (0.8, 0.1)
    standard = create_optimizer(Spec("adamw"), model, layer_decay=0.5).param_groups
    assert {group["weight_decay"] for group in standard} == {0.0, 0.01}


def test_layer_decay_refuses_a_model_without_layers():
    with pytest.raises(UsageError, match="Sequential lacks the method group_matcher"):
        create_optimizer(Spec("sgd"), regression_model(), layer_decay=0.5)
    with pytest.raises(UsageError, match="layer_decay must be a number above 0"):
        create_optimizer(Spec("sgd"), regression_model(), layer_decay=0.0)
