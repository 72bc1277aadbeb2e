"""The fast averagers against the slow reference, after every step of a training."""

import pytest
import torch

from switch_ema import (
    EMA,
    LAWA,
    PSWA,
    SWA,
    Lookahead,
    Steps,
    SwitchEMA,
    constant,
    count_warmup,
    linear_warmup,
)
from switch_ema.averaging.methods.reference import (
    ReferenceBEMA,
    ReferenceElasticReset,
    ReferenceEMA,
    ReferenceEq3,
    ReferenceLAWA,
    ReferenceLookahead,
    ReferencePACE,
    ReferencePSWA,
    ReferenceSnoo,
    ReferenceSWA,
    ReferenceSwitchEMA,
    ReferenceTailEMA,
)
from switch_ema.contrib import BEMA, PACE, ElasticReset, LiteralEq3, Snoo, TailEMA
from tests.averaging.helpers import batches, loss_of, network, sgd, train_step

pytestmark = pytest.mark.usefixtures("arithmetic")

WARM = count_warmup(0.99)
RAMP = linear_warmup(0.95, steps=6)
HALF = constant(0.5)
PARAMETERS = {n for n, _ in network().named_parameters(remove_duplicate=False)}

CASES = {
    "ema": (EMA, {"decay": WARM}, ReferenceEMA, {"decay": WARM}),
    "ema every 2": (
        EMA,
        {"decay": constant(0.9), "update_every": 2},
        ReferenceEMA,
        {"decay": constant(0.9), "every": 2},
    ),
    "switch-ema": (
        SwitchEMA,
        {"decay": WARM},
        ReferenceSwitchEMA,
        {"decay": WARM},
    ),
    "switch-ema T=2": (
        SwitchEMA,
        {"decay": RAMP, "switch_every": 2},
        ReferenceSwitchEMA,
        {"decay": RAMP, "switch_every": 2},
    ),
    "swa": (SWA, {"start": 1}, ReferenceSWA, {"start": 1}),
    "lawa": (LAWA, {"k": 2}, ReferenceLAWA, {"k": 2}),
    "pswa": (PSWA, {"period": 2}, ReferencePSWA, {"period": 2}),
    "lookahead": (
        Lookahead,
        {"k": 2, "alpha": 0.3, "buffers": "average"},
        ReferenceLookahead,
        {"k": 2, "alpha": 0.3},
    ),
    "literal-eq3": (
        LiteralEq3,
        {"decay": constant(0.8), "every": Steps(3), "buffers": "average"},
        ReferenceEq3,
        {"decay": 0.8, "every": 3},
    ),
    "snoo": (
        Snoo,
        {"k": 2, "alpha": 0.7, "momentum": 0.4, "buffers": "average"},
        ReferenceSnoo,
        {"k": 2, "alpha": 0.7, "momentum": 0.4, "parameters": PARAMETERS},
    ),
    "snoo without momentum is lookahead": (
        Snoo,
        {"k": 2, "alpha": 0.3, "momentum": 0.0, "buffers": "average"},
        ReferenceLookahead,
        {"k": 2, "alpha": 0.3},
    ),
    "elastic-reset": (
        ElasticReset,
        {"decay": constant(0.7), "switch_every": Steps(5)},
        ReferenceElasticReset,
        {"decay": constant(0.7), "switch_every": 5},
    ),
    "pace": (
        PACE,
        {"rate": 0.1, "strength": 2.0, "kappa": 0.2},
        ReferencePACE,
        {"rate": 0.1, "strength": 2.0, "kappa": 0.2, "parameters": PARAMETERS},
    ),
    "bema": (
        BEMA,
        {"kappa": 0.5, "eta": 0.2, "rho": 10, "gamma": 1},
        ReferenceBEMA,
        {"kappa": 0.5, "eta": 0.2, "rho": 10, "gamma": 1, "parameters": PARAMETERS},
    ),
    "tail-ema": (
        TailEMA,
        {"decay": WARM, "share": 0.6},
        ReferenceTailEMA,
        {"decay": WARM, "share": 0.6, "parameters": PARAMETERS},
    ),
}


def floats(model):
    """All floating tensors by name, as the reference sees them."""
    return {
        name: tensor.clone()
        for name, tensor in model.state_dict().items()
        if tensor.is_floating_point()
    }


def assert_close(fast, slow, tolerance):
    for name, tensor in slow.items():
        torch.testing.assert_close(
            fast[name], tensor, rtol=tolerance, atol=tolerance, msg=name
        )


@pytest.mark.parametrize("flat", [False, True], ids=["separate", "flat"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-14)]
)
@pytest.mark.parametrize("case", CASES)
def test_every_step_equals_the_reference(case, dtype, tolerance, flat):
    method, options, reference, reference_options = CASES[case]
    model, twin = network(dtype=dtype), network(dtype=dtype)
    optimizer, twin_optimizer = sgd(model), sgd(twin)
    averager = method(model, optimizer, flat=flat, **options)
    oracle = reference(floats(twin), **reference_options)
    for epoch in range(4):
        for batch in batches(3, seed=epoch, dtype=dtype):
            train_step(model, optimizer, batch)
            train_step(twin, twin_optimizer, batch)
            twin.load_state_dict(oracle.after_step(floats(twin)), strict=False)
            assert_close(floats(model), floats(twin), tolerance)
            if averager.has_average:
                average = averager.averaged_state_dict()
                assert_close(average, oracle.shadow, tolerance)
        averager.end_epoch()
        twin.load_state_dict(oracle.after_epoch(floats(twin)), strict=False)
        assert_close(floats(model), floats(twin), tolerance)
        if averager.has_average:
            assert_close(averager.averaged_state_dict(), oracle.shadow, tolerance)
    assert averager.steps == oracle.steps == 12
    assert averager.epochs == oracle.epochs == 4


@pytest.mark.parametrize("strength", [0.15, 500.0], ids=["usual", "clipped"])
def test_pace_pulls_by_adams_second_moment(strength):
    """AdamW and the pull, both written out; 500 reaches the bound of 1."""
    model, twin = (network(dtype=torch.float64) for _ in range(2))
    lr, betas, eps, decay = 0.05, (0.9, 0.99), 1e-3, 0.02
    settings = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": decay}
    optimizer = torch.optim.AdamW(model.parameters(), **settings)
    pace = PACE(model, optimizer, strength=strength, kappa=0.2)
    oracle = ReferencePACE(floats(twin), PARAMETERS, lr, strength, 0.2)
    first, second = ({n: 0.0 for n, _ in twin.named_parameters()} for _ in range(2))
    bounded = []
    for step, batch in enumerate(batches(8, dtype=torch.float64), start=1):
        train_step(model, optimizer, batch)
        twin.zero_grad()
        loss_of(twin, batch).backward()
        with torch.no_grad():
            for name, parameter in twin.named_parameters():
                gradient = parameter.grad
                first[name] = betas[0] * first[name] + (1 - betas[0]) * gradient
                second[name] = betas[1] * second[name] + (1 - betas[1]) * gradient**2
                mean = first[name] / (1 - betas[0] ** step)
                root = (second[name] / (1 - betas[1] ** step)).sqrt() + eps
                oracle.roots[name] = root
                bounded.append((lr * strength * 9**-0.2 / root > 1).any().item())
                parameter.mul_(1 - lr * decay).sub_(lr * mean / root)
        oracle.roots["head.weight"] = oracle.roots["body.weight"]
        twin.load_state_dict(oracle.after_step(floats(twin)), strict=False)
        assert_close(floats(model), floats(twin), 1e-12)
        assert_close(pace.averaged_state_dict(), oracle.shadow, 1e-12)
    assert any(bounded) or strength < 1


def test_pace_needs_a_learning_rate():
    with pytest.raises(RuntimeError, match="no learning rate for scale"):
        PACE(network()).update()
