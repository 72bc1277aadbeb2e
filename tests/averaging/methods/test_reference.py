"""The fast averagers against the slow reference, after every step of a training."""

import pytest
import torch

from switch_ema import (
    EMA,
    LAWA,
    PSWA,
    SWA,
    LiteralEq3,
    Lookahead,
    Steps,
    SwitchEMA,
    constant,
    count_warmup,
    linear_warmup,
)
from switch_ema.averaging.methods.reference import (
    ReferenceEMA,
    ReferenceEq3,
    ReferenceLAWA,
    ReferenceLookahead,
    ReferencePSWA,
    ReferenceSWA,
    ReferenceSwitchEMA,
)
from tests.averaging.helpers import batches, network, sgd, train_step

pytestmark = pytest.mark.usefixtures("arithmetic")

WARM = count_warmup(0.99)
RAMP = linear_warmup(0.95, steps=6)
HALF = constant(0.5)

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
