"""Copies, dtypes, files and resuming on a device that is not the CPU.

``test_simulated.py`` runs this file in a process of its own, beside the contract of
all methods.
"""

import io
from functools import partial
from typing import ClassVar

import pytest
import torch
from torch import nn

from switch_ema import EMA, FusedAdam, FusedAdamW, FusedSGD, SwitchEMA, constant
from switch_ema.averaging.shadow.offload import OffloadedGroup
from tests.averaging.devices.simulated import NAME
from tests.averaging.helpers import (
    DEVICE,
    Odd,
    assert_same,
    batches,
    copy_of,
    loss_of,
    network,
    nudge,
    sgd,
    train_step,
    trained,
)


def on_cpu(state):
    return {name: tensor.to("cpu", copy=True) for name, tensor in state.items()}


def assert_close(first, second, **tolerance):
    assert list(first) == list(second)
    for name, tensor in first.items():
        torch.testing.assert_close(tensor, second[name], msg=name, **tolerance)


def run(make, device, optimizer_class=None, resume_on=None):
    """Train six steps, and go on from a file on another device after three."""

    def build(device, seed=0):
        model = network(seed, device=device)
        if optimizer_class is None:
            optimizer = sgd(model)
        else:
            optimizer = optimizer_class(model.parameters(), lr=0.01)
        return model, optimizer, make(model, optimizer)

    model, optimizer, averager = build(device)
    for seed in range(2):
        for batch in batches(3, seed):
            train_step(model, optimizer, [x.to(device) for x in batch])
        averager.end_epoch()
        if seed == 0 and resume_on:
            file = io.BytesIO()
            states = {
                "model": averager.live_state_dict(),
                "optimizer": optimizer.state_dict(),
                "averager": averager.state_dict(),
            }
            torch.save(states, file)
            file.seek(0)
            states = torch.load(file, map_location="cpu", weights_only=True)
            before = on_cpu(averager.averaged_state_dict())
            device = resume_on
            model, optimizer, averager = build(device, seed=5)
            model.load_state_dict(states["model"])
            optimizer.load_state_dict(states["optimizer"])
            averager.load_state_dict(states["averager"])
            assert_same(on_cpu(averager.averaged_state_dict()), before)
    assert {p.device.type for p in model.parameters()} == {device}
    return on_cpu(averager.averaged_state_dict()), on_cpu(model.state_dict())


def test_the_contract_runs_on_the_simulated_device():
    assert DEVICE == NAME
    model = network()
    assert {t.device.type for t in model.state_dict().values()} == {NAME}
    assert type(model.stem.weight) is nn.Parameter
    with pytest.raises(RuntimeError, match="at least two devices"):
        model.stem.weight.detach() + torch.ones(4, 1, 3, 3)


def test_numbers_are_those_of_the_cpu(make):
    average, live = run(make, NAME)
    expected_average, expected_live = run(make, "cpu")
    assert_close(average, expected_average)
    assert_close(live, expected_live)


@pytest.mark.parametrize("devices", [(NAME, "cpu"), ("cpu", NAME)])
def test_resuming_on_another_device(make, devices):
    first, second = devices
    average, live = run(make, first, resume_on=second)
    expected_average, expected_live = run(make, first)
    assert_close(average, expected_average)
    assert_close(live, expected_live)


# Adam without a large eps makes steps of the noise in a bias before batch norm.
OPTIMIZERS = [FusedSGD, partial(FusedAdam, eps=1e-3), partial(FusedAdamW, eps=1e-3)]


@pytest.mark.parametrize("optimizer_class", OPTIMIZERS)
def test_fused_optimizers(optimizer_class):
    def make(model, optimizer):
        return SwitchEMA(model, optimizer, decay=constant(0.8))

    average, live = run(make, NAME, optimizer_class)
    expected_average, expected_live = run(make, "cpu", optimizer_class)
    assert_close(average, expected_average)
    assert_close(live, expected_live)


def test_states_come_back_from_a_file_on_the_device_itself():
    _, _, ema = trained(lambda *args: EMA(*args, decay=constant(0.8)))
    file = io.BytesIO()
    torch.save(ema.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    assert {tensor.device.type for tensor in state["shadow"].values()} == {NAME}
    assert_same(on_cpu(state["shadow"]), on_cpu(ema.state_dict()["shadow"]))


class Event:
    def __init__(self, log):
        self.log = log

    def synchronize(self):
        self.log.append("host waits")


class Stream:
    """The device runs everything at once, so its streams only keep a log."""

    log: ClassVar[list[str]] = []

    def __init__(self, device=None):
        pass

    def __enter__(self):
        self.log.append("side")

    def __exit__(self, *error):
        self.log.append("main")

    def wait_stream(self, other):
        self.log.append("side waits")

    def wait_event(self, event):
        self.log.append("main waits")

    def record_event(self):
        return Event(self.log)


@pytest.mark.parametrize("has_streams", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_offloading(monkeypatch, has_streams, dtype):
    module = torch.get_device_module(NAME)
    monkeypatch.setattr(Stream, "log", [])
    if has_streams:
        monkeypatch.setattr(module, "Stream", Stream, raising=False)
        monkeypatch.setattr(module, "stream", lambda s: s, raising=False)
        monkeypatch.setattr(module, "current_stream", Stream, raising=False)
    model = network(dtype=dtype)
    beside = EMA(model, decay=constant(0.8))
    ema = EMA(model, decay=constant(0.8), device="cpu")
    assert {type(group) for group in ema._shadow._groups} == {OffloadedGroup}
    for _ in range(3):
        nudge(model)
        beside.update()
        ema.update()
    assert bool(Stream.log) is has_streams
    kept = ema.state_dict()["shadow"]
    assert {tensor.device.type for tensor in kept.values()} == {"cpu"}
    assert_close(kept, on_cpu(beside.state_dict()["shadow"]))
    live = copy_of(model.state_dict())
    with ema.averaged():
        inside = on_cpu(model.state_dict())
    assert_same(copy_of(model.state_dict()), live)
    with beside.averaged():
        assert_close(inside, on_cpu(model.state_dict()))


@pytest.mark.parametrize("options", [{}, {"dtype": torch.float64}, {"device": NAME}])
def test_tensors_of_every_kind(options):
    def state_after(device):
        torch.manual_seed(0)
        with torch.device(device):
            model = Odd()
        if "device" in options and device == "cpu":
            options.pop("device")
        ema = EMA(model, decay=constant(0.75), **options)
        for _ in range(3):
            nudge(model)
            ema.update()
        before = copy_of(model.state_dict())
        with ema.averaged():
            pass
        assert_same(copy_of(model.state_dict()), before)
        return on_cpu(ema.averaged_state_dict())

    assert_close(state_after(NAME), state_after("cpu"), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shadow", [None, torch.bfloat16])
def test_low_precision(dtype, shadow):
    def state_after(device):
        model = network(dtype=dtype, device=device)
        ema = EMA(model, decay=constant(0.75), dtype=shadow)
        for _ in range(3):
            nudge(model, 0.125)
            ema.update()
        live = copy_of(model.state_dict())
        with ema.averaged():
            pass
        assert_same(copy_of(model.state_dict()), live)
        return on_cpu(ema.state_dict()["shadow"])

    assert_close(state_after(NAME), state_after("cpu"))


INF, NAN = float("inf"), float("nan")
STEPS = [
    # Values of one buffer, update by update.
    [1.0, -INF, -INF, 3.0, NAN, INF],
    [2.0, -INF, 1.0, -INF, 2.0, -INF],
    [3.0, -INF, 1.0, -INF, 2.0, 1.0],
]


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("decay", [0.75, 0.5])
def test_infinities_in_buffers_are_copied(flat, decay):
    """Where the average is looked at after each update, as on the CPU."""

    def shown(device):
        with torch.device(device):
            model = nn.Linear(2, 2)
            model.register_buffer("mask", torch.zeros(6))
        options = {"buffers": "average", "flat": flat}
        ema = EMA(model, decay=constant(decay), **options)
        for values in STEPS:
            model.mask.copy_(torch.tensor(values, device=device))
            ema.update()
            yield ema.averaged_state_dict()["mask"].cpu()

    for here, expected in zip(shown(NAME), shown("cpu"), strict=True):
        torch.testing.assert_close(here, expected, equal_nan=True)


def test_a_buffer_that_was_infinite_is_averaged_anew_from_the_next_look():
    with torch.device(NAME):
        model = nn.Linear(2, 2)
        model.register_buffer("mask", torch.zeros(1))
    ema = EMA(model, decay=constant(0.5), buffers="average")
    for value in (NAN, 4.0, 6.0):
        model.mask.fill_(value)
        ema.update()
    assert ema.averaged_state_dict()["mask"].item() == 6.0
    model.mask.fill_(8.0)
    ema.update()
    assert ema.averaged_state_dict()["mask"].item() == 7.0


def test_a_model_that_is_moved_is_followed():
    """To the device and back; torch replaces the parameters there."""
    model, other = (nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)) for _ in range(2))
    other.load_state_dict(model.state_dict())
    moved, stayed = (EMA(m, decay=constant(0.8)) for m in (model, other))
    for device in ("cpu", NAME, NAME, "cpu"):
        model.to(device)
        for one, averager in ((model, moved), (other, stayed)):
            nudge(one)
            averager.update()
        shadow = moved.averaged_tensors()
        assert {tensor.device.type for tensor in shadow.values()} == {device}
        assert_close(on_cpu(shadow), stayed.averaged_tensors())


def test_a_model_on_two_devices():
    def states(devices):
        torch.manual_seed(0)
        model = nn.ModuleList([nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)])
        for layer, device in zip(model, devices, strict=True):
            layer.to(device)
        ema = EMA(model, decay=constant(0.8))
        for _ in range(2):
            nudge(model)
            ema.update()
        with ema.averaged():
            inside = on_cpu(model.state_dict())
        state = ema.state_dict()
        resumed = EMA(model, decay=constant(0.8))
        resumed.load_state_dict(state)
        assert_same(on_cpu(resumed.state_dict()["shadow"]), on_cpu(state["shadow"]))
        return inside

    assert_close(states(["cpu", NAME, NAME]), states(["cpu"] * 3))


def test_weights_loaded_before_the_first_step_are_followed_on_the_device():
    model, pretrained = network(0), network(1)
    nudge_buffers(pretrained)
    optimizer = sgd(model)
    ema = EMA(model, optimizer)
    # A forward pass moves statistics, which is no load.
    loss_of(model, next(batches(1))).backward()
    shadow = on_cpu(ema.state_dict()["shadow"])
    assert shadow["norm.running_mean"].abs().sum() == 0
    with torch.no_grad():
        for own, other in zip(
            model.state_dict().values(), pretrained.state_dict().values(), strict=True
        ):
            own.copy_(other)
    expected = on_cpu(pretrained.state_dict())
    assert_same(on_cpu(ema.averaged_state_dict()), expected)


def nudge_buffers(model):
    with torch.no_grad():
        model.norm.running_mean.add_(2.0)
        model.norm.num_batches_tracked.add_(3)


def test_showing_recalibrating_and_exporting(tmp_path):
    from safetensors.torch import load_file

    model, _, ema = trained(lambda *args: EMA(*args, decay=constant(0.8)))
    data = list(batches(3, seed=4))
    before = on_cpu(ema.averaged_state_dict())["norm.running_var"]
    ema.recalibrate(data)
    after = on_cpu(ema.averaged_state_dict())
    assert not torch.equal(before, after["norm.running_var"])
    model.eval()
    called = ema.call(data[0][0])
    with ema.averaged():
        assert torch.equal(called, model(data[0][0]))
    assert torch.equal(called, ema.averaged_copy()(data[0][0]))
    ema.save_averaged(tmp_path / "average.safetensors")
    saved = load_file(tmp_path / "average.safetensors")
    assert all(torch.equal(tensor, after[name]) for name, tensor in saved.items())


def test_a_switch_refuses_an_average_that_is_not_finite():
    model, _, sema = trained(lambda *args: SwitchEMA(*args, decay=constant(0.8)))
    with torch.no_grad():
        model.stem.weight[0, 0, 0, 0] = NAN
    sema.detach()
    with pytest.warns(UserWarning, match="no step was counted"):
        assert not sema.end_epoch()
    sema.update()
    live = copy_of(model.state_dict())
    with pytest.raises(FloatingPointError, match=r"average of stem\.weight"):
        sema.switch()
    assert_close(on_cpu(copy_of(model.state_dict())), on_cpu(live), equal_nan=True)


def test_a_refused_switch_finds_a_weight_in_a_group_that_begins_with_a_buffer():
    """Buffers and weights that are cast are averaged in one group there."""
    model = nn.Sequential(nn.BatchNorm1d(2, affine=False), nn.Linear(2, 2).bfloat16())
    model.to(DEVICE)
    sema = SwitchEMA(model, decay=constant(0.5))
    sema.update()
    live = on_cpu(model.state_dict())
    sema.averaged_tensors()["1.weight"].fill_(float("inf"))
    with pytest.raises(FloatingPointError, match=r"1\.weight"):
        sema.switch()
    assert_same(on_cpu(model.state_dict()), live)
