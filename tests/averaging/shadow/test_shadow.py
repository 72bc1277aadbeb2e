"""Layouts, dtypes, devices and memory of the shadow."""

import copy
import gc
import pickle

import pytest
import torch
from torch import nn

from switch_ema import EMA, FusedSGD, SwitchEMA, constant
from switch_ema.averaging.kernels import torch_ops
from switch_ema.averaging.shadow.groups import DenseGroup, PackedGroup
from switch_ema.contrib import TailEMA
from tests.averaging.helpers import (
    Odd,
    assert_same,
    batches,
    copy_of,
    network,
    nudge,
    sgd,
    train_step,
)

pytestmark = pytest.mark.usefixtures("arithmetic")


@pytest.mark.parametrize("dtype", [None, torch.float32, torch.bfloat16])
def test_tensors_of_every_kind(dtype):
    model = Odd()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    ema = EMA(model, decay=constant(0.5), dtype=dtype)
    nudge(model)
    ema.update()
    live = copy_of(model.state_dict())
    with ema.averaged():
        for name, parameter in model.named_parameters():
            middle = (before[name] + live[name]) / 2
            torch.testing.assert_close(parameter.detach(), middle, rtol=0.01, atol=0.02)
            assert parameter.stride() == dict(model.named_parameters())[name].stride()
    assert_same(copy_of(model.state_dict()), live)
    average = ema.averaged_state_dict()
    assert average["counts"].tolist() == [1000, 2**40]
    assert average["flags"].tolist() == [True, False]
    assert "scratch" not in average


def test_a_part_that_was_cast_is_followed():
    model = nn.Sequential(*[nn.Linear(3, 3) for _ in range(3)])
    ema = EMA(model, decay=constant(0.5))
    ema.update()
    for dtype in (torch.bfloat16, torch.float64):
        before = ema.averaged_state_dict()
        model[1].to(dtype)
        nudge(model)
        ema.update()
        after = ema.averaged_state_dict()
        for name, live in model.state_dict().items():
            middle = (before[name].double() + live.double()) / 2
            torch.testing.assert_close(
                after[name].double(), middle, rtol=0.01, atol=0.02
            )


def test_a_model_turned_to_channels_last_later_is_followed():
    sizes = [(8, 3, 3, 3), (64, 64), (16, 16, 1, 1), (64, 1, 3, 3)]
    model = nn.ParameterList([nn.Parameter(torch.randn(size)) for size in sizes])
    ema = EMA(model, decay=constant(0.75))
    for _ in range(3):
        before = ema.averaged_state_dict()
        nudge(model)
        ema.update()
        after = ema.averaged_state_dict()
        for name, live in model.state_dict().items():
            middle = 0.75 * before[name] + 0.25 * live
            torch.testing.assert_close(after[name], middle)
        for parameter in model:
            if parameter.ndim == 4:
                changed = parameter.data.to(memory_format=torch.channels_last)
                parameter.data = changed


def test_a_parameter_that_has_shrunk_is_an_error_and_nothing_is_averaged():
    model = nn.ParameterList([nn.Parameter(torch.zeros(4, 4)) for _ in range(3)])
    ema = EMA(model, decay=constant(0.9))
    nudge(model)
    model[1].data = torch.ones(2, 4)
    with pytest.raises(RuntimeError, match=r"1 was \[4, 4\] when .* is \[2, 4\] now"):
        ema.update()
    model[1].data = torch.ones(4, 4)
    assert all(not average.any() for average in ema.averaged_state_dict().values())


def test_the_shadow_of_dense_parameters_lies_in_one_buffer():
    model = nn.Sequential(*[nn.Linear(20, 20, bias=False) for _ in range(5)])
    ema = EMA(model, decay=constant(0.9))
    shadow = ema._shadow.tensors
    assert len({tensor.untyped_storage().data_ptr() for tensor in shadow}) == 1
    model[2].weight.data = model[2].weight.data.t()  # the same memory, another order
    before = ema.averaged_state_dict()["2.weight"]
    ema.update()
    torch.testing.assert_close(
        ema.averaged_state_dict()["2.weight"],
        0.9 * before + 0.1 * model[2].weight.detach(),
    )


def test_a_round_trip_of_dtypes_does_not_lose_the_buffers():
    model = nn.BatchNorm1d(3)
    ema = EMA(model, decay=constant(0.9))
    model.double().float()  # replaces the buffers
    model.running_mean.fill_(1.0)
    ema.update()
    torch.testing.assert_close(
        ema.averaged_state_dict()["running_mean"], torch.full((3,), 0.1)
    )


def test_strides_survive():
    model = Odd()
    strides = {name: p.stride() for name, p in model.named_parameters()}
    ema = SwitchEMA(model, decay=constant(0.5))
    ema.update()
    ema.end_epoch()
    with ema.averaged():
        pass
    assert {name: p.stride() for name, p in model.named_parameters()} == strides


def test_small_vectors_are_averaged_in_packs_of_any_number(arithmetic):
    """More vectors than fit into one gathering, and of two dtypes."""
    sizes = [8192, 8192, 8192, 8192, 5, 8192, 1, 9000]
    parameters = [nn.Parameter(torch.randn(size)) for size in sizes]
    parameters += [nn.Parameter(torch.randn(3, dtype=torch.float64))]
    model = nn.ParameterList(parameters)
    ema = EMA(model, decay=constant(0.75))
    kinds = {type(group) for group in ema._shadow._groups}
    assert kinds == ({DenseGroup} if arithmetic == "c" else {PackedGroup, DenseGroup})
    before = [parameter.detach().clone() for parameter in parameters]
    nudge(model)
    ema.update()
    average = ema.averaged_state_dict()
    for index, start in enumerate(before):
        torch.testing.assert_close(average[str(index)], start + 0.25)


@pytest.mark.parametrize("flat", [False, True])
def test_a_cast_model_takes_the_shadow_along(flat):
    model = network()
    ema = EMA(model, decay=constant(0.5), flat=flat)
    nudge(model)
    ema.update()
    average = ema.averaged_state_dict()["stem.weight"]
    model.double()
    nudge(model)
    ema.update()
    after = ema.averaged_state_dict()["stem.weight"]
    assert after.dtype == torch.float64
    expected = 0.5 * average.double() + 0.5 * model.stem.weight
    torch.testing.assert_close(after, expected.detach(), rtol=0, atol=0)
    assert ema.state_dict()["shadow"]["stem.weight"].dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("buffers", ["average", "copy"])
@pytest.mark.parametrize(
    "make_copy", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))]
)
def test_a_copy_of_a_cast_model_goes_on_to_be_averaged(make_copy, buffers, dtype):
    """Looking at it must not part the average from what the next steps average."""
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    ema = EMA(model, decay=constant(0.5), buffers=buffers)
    ema.update()
    model.to(dtype)
    model, ema = make_copy((model, ema))
    ema.averaged_state_dict()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(8)
    for _ in range(40):
        ema.update()
    for name, average in ema.averaged_tensors().items():
        live = model.state_dict()[name].to(average.dtype)
        torch.testing.assert_close(average, live, rtol=1e-6, atol=1e-6)
    kept = torch.float64 if dtype == torch.float64 else torch.float32
    assert ema.averaged_tensors()["1.weight"].dtype == kept


def test_a_buffer_that_becomes_a_floating_point_one_is_averaged():
    model = nn.Linear(1, 1)
    model.register_buffer("seen", torch.tensor([4]))
    ema = EMA(model, decay=constant(0.5), buffers="average")
    ema.update()
    model.seen = torch.tensor([4.0])
    ema.averaged_state_dict()
    model.seen = torch.tensor([6.0])
    ema.update()
    assert ema.averaged_state_dict()["seen"].tolist() == [5.0]


def with_buffer() -> nn.Module:
    model = nn.Linear(1, 1)
    model.register_buffer("seen", torch.tensor([1.0]))
    return model


def test_copied_buffers_are_those_of_the_last_step_after_refresh():
    model = with_buffer()
    ema = EMA(model, decay=constant(0.5), buffers="copy")
    ema.averaged_state_dict()
    model.seen.fill_(2)
    ema.update()
    ema.refresh()
    assert ema.averaged_state_dict()["seen"].item() == 2


@pytest.mark.parametrize("buffers", ["average", "copy"])
def test_a_state_is_loaded_whole_after_a_step_that_nobody_looked_at(buffers):
    model = with_buffer()
    ema = EMA(model, decay=constant(0.5), buffers=buffers)
    state = ema.state_dict()
    model.seen.fill_(2)
    ema.update()
    ema.load_state_dict(state)
    assert ema.state_dict()["shadow"]["seen"].item() == 1


def test_a_state_is_loaded_bit_for_bit_into_a_model_that_was_cast():
    model, other = (nn.Linear(3, 3).double() for _ in range(2))
    state = EMA(model).state_dict()
    ema = EMA(other.float())
    other.double()
    ema.load_state_dict(state)
    assert_same(ema.state_dict()["shadow"], state["shadow"])


@pytest.mark.parametrize("buffers", ["average", "copy"])
@pytest.mark.parametrize("how", ["deleted", "None"])
def test_a_buffer_that_is_given_up_ends_no_training(how, buffers):
    model = with_buffer()
    ema = EMA(model, decay=constant(0.5), buffers=buffers)
    ema.update()
    if how == "deleted":
        del model.seen
    else:
        model.seen = None
    nudge(model, 2.0)
    ema.update()
    average = ema.averaged_state_dict()
    assert list(average) == ["weight", "bias"]
    torch.testing.assert_close(average["bias"], model.bias.detach() - 1)
    model.register_buffer("seen", torch.tensor([3.0]))
    ema.update()
    model.seen.fill_(5)
    ema.update()
    shown = ema.averaged_state_dict()["seen"].item()
    begin = 3 if how == "deleted" else 2  # one that was cleared goes on
    assert shown == (5 if buffers == "copy" else (begin + 5) / 2)


def test_weights_are_loaded_after_a_buffer_was_deleted():
    model = with_buffer()
    ema = EMA(model)
    del model.seen
    model.load_state_dict({"weight": torch.ones(1, 1), "bias": torch.ones(1)})
    assert ema.averaged_state_dict()["bias"].item() == 1


def test_a_derived_average_follows_the_cast_of_a_part():
    model = nn.Sequential(*[nn.BatchNorm1d(2) for _ in range(3)]).double()
    tail = TailEMA(model, decay=constant(0.5), share=0.5, buffers="copy")
    tail.update()
    model[1].float()
    tail.averaged_state_dict()
    nudge(model, 4.0)
    tail.update()
    average = tail.averaged_state_dict()
    for name, live in model.named_parameters():
        torch.testing.assert_close(average[name], live.detach() - 1)


def test_tensors_of_a_buffer_that_has_grown_have_its_shape():
    model = with_buffer()
    ema = EMA(model, decay=constant(0.5))
    ema.update()
    model.seen = torch.ones(3)
    assert ema.averaged_tensors()["seen"].tolist() == [1.0] * 3


def test_a_half_precision_model_is_averaged_in_float32():
    """At decay 0.999 a bfloat16 average would never move."""
    model = nn.Linear(4, 4).bfloat16()
    nn.init.constant_(model.weight, 1.0)
    ema = EMA(model, decay=constant(0.999))
    assert ema.state_dict()["shadow"]["weight"].dtype == torch.float32
    nn.init.constant_(model.weight, 2.0)
    for _ in range(100):
        ema.update()
    moved = ema.state_dict()["shadow"]["weight"].mean().item() - 1
    assert moved == pytest.approx(1 - 0.999**100, rel=1e-4)
    live = model.weight.detach().clone()
    with ema.averaged():
        assert model.weight.dtype == torch.bfloat16
    assert torch.equal(model.weight, live)
    assert ema.state_dict()["shadow"]["weight"].mean().item() - 1 == moved


def test_a_bfloat16_shadow_does_not_stall():
    """It follows a float32 shadow within 1% over 10,000 steps at decay 0.9999."""
    model = nn.Linear(64, 64, bias=False)
    coarse = EMA(model, decay=constant(0.9999), dtype=torch.bfloat16)
    exact = EMA(model, decay=constant(0.9999))
    start = model.weight.detach().clone()
    target = start + torch.randn(64, 64)
    with torch.no_grad():
        model.weight.copy_(target)
    for _ in range(10_000):
        coarse.update()
        exact.update()
    a, b = (e.averaged_state_dict()["weight"] for e in (coarse, exact))
    assert (b - start).norm() > 0.6 * (target - start).norm()
    assert (a - b).norm() < 0.01 * b.norm()


def test_a_shadow_on_an_explicit_device_and_dtype():
    model = network()
    optimizer = sgd(model)
    ema = EMA(model, optimizer, device="cpu", dtype=torch.float64)
    twin = network()
    twin_optimizer = sgd(twin)
    exact = EMA(twin, twin_optimizer)
    for batch in batches(3):
        train_step(model, optimizer, batch)
        train_step(twin, twin_optimizer, batch)
    shadow = ema.state_dict()["shadow"]["stem.weight"]
    assert (shadow.dtype, shadow.device.type) == (torch.float64, "cpu")
    assert_close = torch.testing.assert_close
    assert_close(shadow.float(), exact.averaged_state_dict()["stem.weight"])
    live = copy_of(model.state_dict())
    with ema.averaged():
        assert model.stem.weight.dtype == torch.float32
    assert_same(copy_of(model.state_dict()), live)
    assert torch.equal(ema.state_dict()["shadow"]["stem.weight"], shadow)


def test_a_model_cast_inside_averaged_is_put_back():
    model = network()
    optimizer = sgd(model)
    ema = EMA(model, optimizer)
    train_step(model, optimizer, next(batches(1)))
    live = copy_of(model.state_dict())
    with pytest.warns(UserWarning, match="cast or moved inside averaged"):  # noqa: SIM117
        with ema.averaged():
            model.bfloat16()
    assert_same(copy_of(model.state_dict()), live)


@pytest.mark.parametrize("kind", ["weight_norm", "parametrized", "lazy"])
def test_modules_that_cannot_be_deep_copied(kind):
    if kind == "lazy":
        model = nn.Sequential(nn.LazyBatchNorm1d(), nn.LazyLinear(4), nn.LazyLinear(2))
    else:
        wrap = (
            nn.utils.weight_norm
            if kind == "weight_norm"
            else nn.utils.parametrizations.weight_norm
        )
        model = nn.Sequential(wrap(nn.Linear(3, 4)), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ema = EMA(model, optimizer, decay=constant(0.5))
    start = None
    for _ in range(3):
        model(torch.randn(8, 3)).square().mean().backward()
        if start is None:
            start = {n: p.detach().clone() for n, p in model.named_parameters()}
        optimizer.step()
        optimizer.zero_grad()
    state = ema.state_dict()["shadow"]
    assert set(start) <= set(state)
    live = copy_of(model.state_dict())
    with ema.averaged(), torch.no_grad():
        model(torch.randn(8, 3))
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, live[name])
        assert not torch.equal(state[name], live[name])


def test_a_lazy_models_average_starts_at_its_first_weights():
    model = nn.LazyLinear(1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    ema = EMA(model, optimizer, decay=constant(0.75))
    model(torch.ones(1, 1)).sum().backward()
    first = model.weight.item()
    optimizer.step()  # live = first - 1, average = first - 0.25
    assert ema.averaged_state_dict()["weight"].item() == pytest.approx(first - 0.25)


def large_model():
    return nn.Sequential(*[nn.Linear(1024, 1024, bias=False) for _ in range(8)])


def bytes_of(model):
    return sum(p.numel() * p.element_size() for p in model.parameters())


def grown(function) -> int:
    """Peak growth of the process' memory, in bytes of new tensors."""
    gc.collect()
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        function()
    now = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
    return peak


def test_the_profilers_count_is_right_on_a_known_case():
    model = large_model()
    copy = grown(lambda: [p.detach().clone() for p in model.parameters()])
    assert copy == pytest.approx(bytes_of(model), rel=0.01)


def test_averaged_and_update_allocate_no_second_model():
    model = large_model()
    ema = SwitchEMA(model)
    size = bytes_of(model)

    def enter_and_leave():
        with ema.averaged():
            pass

    ema.update()
    assert grown(enter_and_leave) < 0.15 * size
    assert grown(ema.update) < 0.01 * size
    assert grown(ema.end_epoch) < 0.15 * size


@pytest.mark.parametrize(
    ("dtype", "copies"), [(None, 1), (torch.bfloat16, 0.5), (torch.float64, 2)]
)
def test_extra_memory_is_one_copy_and_half_with_bfloat16(dtype, copies):
    model = large_model()
    made = []
    peak = grown(lambda: made.append(SwitchEMA(model, dtype=dtype)))
    assert peak == pytest.approx(copies * bytes_of(model), rel=0.01)
    made[0].update()
    assert grown(made[0].update) < 0.15 * bytes_of(model)


def test_a_parameter_replaced_by_another_kind_of_tensor_is_not_read_by_memory():
    """Whose memory is elsewhere: the kernels in C would read at address zero."""

    class Wrapped(torch.Tensor):
        @staticmethod
        def __new__(cls, inner):
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape)

        def __init__(self, inner):
            self.inner = inner

        @classmethod
        def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
            if function == torch.ops.aten.detach.default:
                return cls(args[0].inner)
            raise NotImplementedError(f"no {function}")

    model = nn.Linear(2, 2)
    ema = EMA(model, decay=constant(0.5))
    ema.update()
    inner = torch.ones(2, 2)
    model.weight = nn.Parameter(Wrapped(inner), requires_grad=False)
    with pytest.raises(NotImplementedError, match="no aten"):
        ema.update()


def test_a_model_that_gets_its_memory_later_is_averaged_from_then_on():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    ema = EMA(model, decay=constant(0.75))
    model.to_empty(device="cpu")
    for tensor in model.state_dict().values():
        tensor.fill_(1)
    ema.update()
    nn.init.constant_(model[0].weight, 5.0)
    ema.update()
    assert ema.averaged_state_dict()["0.weight"].tolist() == [[2.0, 2.0], [2.0, 2.0]]


STORAGES = {
    "float32": {},
    "float64": {"dtype": torch.float64},
    "bfloat16": {"dtype": torch.bfloat16},
    "flat": {"flat": True},
}


def mixed_model():
    """Weights of several layouts and dtypes, and statistics."""
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Linear(4, 4))
    model[0].to(memory_format=torch.channels_last)
    model[2].double()
    return model


@pytest.mark.parametrize("storage", STORAGES)
def test_a_switch_writes_what_averaged_shows(storage):
    model = mixed_model()
    sema = SwitchEMA(model, decay=constant(0.5), **STORAGES[storage])
    for seed in range(3):
        nudge(model, 0.1 * seed)
        sema.update()
    shown, before = sema.averaged_state_dict(), sema.state_dict()["shadow"]
    versions = [parameter._version for parameter in model.parameters()]
    sema.switch()
    assert_same(copy_of(model.state_dict()), shown)
    assert_same(sema.state_dict()["shadow"], before)
    now = [parameter._version for parameter in model.parameters()]
    assert all(new > old for new, old in zip(now, versions, strict=True))
    # Also where tensors have moved since the addresses were noted.
    for parameter in model.parameters():
        if storage != "flat":
            parameter.data = parameter.data.clone()
    nudge(model, 0.3)
    sema.update()
    shown = sema.averaged_state_dict()
    sema.switch()
    assert_same(copy_of(model.state_dict()), shown)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["0.weight", "0.bias", "2.weight", "2.bias"])
@pytest.mark.parametrize("storage", STORAGES)
def test_a_refused_switch_names_the_tensor_and_writes_nothing(storage, name, value):
    model = mixed_model()
    sema = SwitchEMA(model, decay=constant(0.5), **STORAGES[storage])
    nudge(model)
    sema.update()
    live = copy_of(model.state_dict())
    sema.averaged_tensors()[name][-1] = value
    with pytest.raises(FloatingPointError, match=f"average of {name} is not"):
        sema.switch()
    assert_same(copy_of(model.state_dict()), live)
    assert sema.switches == 0


def _break_live(sema, model):
    model[0].bias.data[-1] = float("nan")
    sema.update()


def _break_tensor(sema, model):
    sema.averaged_tensors()["0.bias"][-1] = float("nan")


def _break_memory(sema, model):
    sema.averaged_tensors()["0.bias"].data[-1] = float("nan")  # past autograd


def _break_view(sema, model):
    with sema.averaged():
        model[0].bias.data[-1] = float("nan")


def _break_state(sema, model):
    state = sema.state_dict()
    state["shadow"]["0.bias"][-1] = float("nan")
    sema.load_state_dict(state)


@pytest.mark.parametrize(
    "break_", [_break_live, _break_tensor, _break_memory, _break_view, _break_state]
)
@pytest.mark.parametrize("storage", STORAGES)
def test_averages_broken_after_a_check_are_noticed(storage, break_):
    """Finite averages are not checked again until something writes to them."""
    model = mixed_model()
    sema = SwitchEMA(model, decay=constant(0.5), **STORAGES[storage])
    for _ in range(2):
        nudge(model)
        sema.update()
        sema.switch()
    break_(sema, model)
    for _ in range(2):
        with pytest.raises(FloatingPointError, match=r"average of 0\.bias is not"):
            sema.switch()
    sema.averaged_tensors()["0.bias"][-1] = 0.0
    sema.switch()


@pytest.mark.filterwarnings("ignore:No working C compiler")
def test_averages_broken_within_a_fused_step_are_noticed():
    model = nn.Linear(2, 2)
    optimizer = FusedSGD(model.parameters(), lr=0.5)
    sema = SwitchEMA(model, optimizer, decay=constant(0.9))
    step_on_ones(model, optimizer)
    sema.switch()
    sema.switch()
    model.weight.grad = torch.full((2, 2), float("nan"))
    optimizer.step()
    with pytest.raises(FloatingPointError, match="average of weight is not"):
        sema.switch()


@pytest.mark.parametrize("storage", ["float32", "flat"])
def test_a_switch_does_not_read_averages_that_an_update_found_finite(
    storage, monkeypatch, arithmetic
):
    model = mixed_model()
    sema = SwitchEMA(model, decay=constant(0.5), **STORAGES[storage])
    sema.switch()
    checked = []
    check = torch_ops.first_non_finite
    monkeypatch.setattr(
        torch_ops, "first_non_finite", lambda some: checked.extend(some) or check(some)
    )
    sema.update()
    sema.switch()
    assert bool(checked) == (arithmetic != "c")


@pytest.mark.filterwarnings("ignore:No working C compiler")
def test_a_part_cast_back_is_averaged_beside_what_the_optimizer_averages(arithmetic):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).bfloat16())
    optimizer = FusedSGD(model.parameters(), lr=0.5)
    ema = EMA(model, optimizer, decay=constant(0.5))
    step_on_ones(model, optimizer)
    before = copy_of(ema.averaged_tensors())
    model.float()
    step_on_ones(model, optimizer)
    live = dict(model.named_parameters())
    for name, average in ema.averaged_tensors().items():
        expected = torch.lerp(before[name], live[name].detach(), 0.5)
        torch.testing.assert_close(average, expected)


def step_on_ones(model, optimizer):
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
