"""Buffers that cannot be averaged, or hold infinities on purpose."""

import pytest
import torch
from torch import nn

from switch_ema import EMA, LAWA, SWA, SwitchEMA, constant
from tests.averaging.helpers import nudge

pytestmark = pytest.mark.usefixtures("arithmetic")


class Masked(nn.Module):
    def __init__(self, persistent=True, length=4):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        mask = torch.full((length, length), float("-inf")).triu(1)
        self.register_buffer("mask", mask, persistent=persistent)
        self.register_buffer("smallest", torch.tensor([float("inf"), 1.0]))
        self.register_buffer("never", torch.tensor(float("nan")))


@pytest.mark.parametrize("options", [{}, {"flat": True}, {"dtype": torch.float64}])
def test_infinite_values_are_copied_and_the_switch_is_not_refused(options):
    model = Masked()
    sema = SwitchEMA(
        model, decay=constant(0.5), live_share=0.25, buffers="average", **options
    )
    for _ in range(3):
        nudge(model)
        sema.update()
    model.smallest[0] = 7.0  # an observer that has seen its first values
    sema.update()
    assert sema.end_epoch()
    for state in (sema.averaged_state_dict(), sema.live_state_dict()):
        assert torch.equal(state["mask"], Masked().mask)
        assert state["smallest"].tolist() == [7.0, 1.0]
        assert state["never"].isnan()
        assert state["layer.weight"].isfinite().all()


@pytest.mark.parametrize("method", [SWA, LAWA])
def test_means_copy_them_as_well(method):
    model = Masked()
    averager = method(model, buffers="average")
    averager.end_epoch()
    model.smallest[0] = 7.0
    averager.end_epoch()
    state = averager.averaged_state_dict()
    assert torch.equal(state["mask"], model.mask)
    assert state["smallest"].tolist() == [7.0, 1.0]


def test_weights_that_are_not_finite_are_still_refused():
    model = Masked()
    sema = SwitchEMA(model)
    with torch.no_grad():
        model.layer.weight[0, 0] = float("inf")
    sema.update()
    with pytest.raises(FloatingPointError, match=r"layer\.weight"):
        sema.end_epoch()


def unusual():
    values = torch.randn(4, 4)
    yield "sparse", values.to_sparse()
    yield "csr", values.to_sparse_csr()
    yield "nested", torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    yield "quantised", torch.quantize_per_tensor(values, 0.1, 0, torch.qint8)
    yield "float8", values.to(torch.float8_e4m3fn)
    if torch.backends.mkldnn.is_available():
        yield "mkldnn", values.to_mkldnn()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("excluded", [True, False])
@pytest.mark.parametrize("kind", [name for name, _ in unusual()])
def test_what_cannot_be_averaged_is_left_alone(kind, excluded):
    model = nn.Linear(4, 4)
    buffer = dict(unusual())[kind]
    model.register_buffer("odd", buffer)
    ema = EMA(model, decay=constant(0.5), exclude="odd" if excluded else None)
    start = model.weight.detach().clone()
    nudge(model)
    ema.update()
    with ema.averaged():
        torch.testing.assert_close(model.weight.detach(), start + 0.5)
        assert model.odd is buffer
    assert "odd" not in ema.state_dict()["shadow"]
    ema.load_state_dict(ema.state_dict())


def test_buffers_that_are_not_persistent_are_not_in_the_state():
    short = Masked(persistent=False)
    ema = EMA(short, decay=constant(0.5))
    ema.update()
    state = ema.state_dict()
    assert "mask" not in state["shadow"]
    longer = Masked(persistent=False, length=9)
    longer.load_state_dict(short.state_dict())
    resumed = EMA(longer, decay=constant(0.5))
    resumed.load_state_dict(state)
    with resumed.averaged() as model:
        assert torch.equal(model.mask, Masked(length=9).mask)
    # Version 0.1.0 stored them; such a state still loads.
    state["shadow"]["mask"] = short.mask
    resumed.load_state_dict(state)


class Conjugated(nn.Module):
    """A weight that torch conjugates, or negates, only when it is read."""

    def __init__(self, negates):
        super().__init__()
        self.plain = nn.Parameter(torch.ones(3))
        values = torch.randn(2, dtype=torch.complex64).conj()
        self.lazy = nn.Parameter(values.imag if negates else values)
        assert self.lazy.is_neg() if negates else self.lazy.is_conj()


@pytest.mark.parametrize("negates", [False, True])
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_switch_writes_lazily_conjugated_weights(negates, share):
    model = Conjugated(negates)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    sema = SwitchEMA(model, decay=constant(0.5), live_share=share)
    nudge(model)
    sema.update()
    state = sema.averaged_state_dict()
    live = sema.live_state_dict()
    sema.switch()
    for name, value in model.named_parameters():
        torch.testing.assert_close(state[name], (before[name] + live[name]) / 2)
        expected = torch.lerp(state[name], live[name], share)
        torch.testing.assert_close(value.detach(), expected)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_complex_numbers_of_16_bits_are_refused():
    model = nn.Linear(2, 2)
    model.phase = nn.Parameter(torch.ones(2, dtype=torch.complex64).to(torch.complex32))
    with pytest.raises(TypeError, match="phase is complex32"):
        EMA(model)
    ema = EMA(model, exclude="phase")
    ema.update()
    with ema.averaged():
        pass
