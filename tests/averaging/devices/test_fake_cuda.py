"""What the library asks of a GPU: how many kernels, and whether the host waits."""

from contextlib import contextmanager

import pytest
import torch
from torch import nn

from switch_ema import EMA, FusedAdam, FusedAdamW, FusedSGD, Steps, SwitchEMA
from switch_ema.averaging.kernels import torch_ops
from tests.averaging.devices.fake_cuda import (
    ATEN,
    convolutions,
    fake_cuda,
    give_gradients,
)


@pytest.fixture(autouse=True)
def plain_fakes(monkeypatch):
    """Take fake tensors for plain ones, as tensors of a GPU are."""
    fake = torch._subclasses.FakeTensor
    monkeypatch.setattr(torch_ops, "PLAIN_TYPES", (*torch_ops.PLAIN_TYPES, fake))


def mixed(layers):
    """Convolutions in bfloat16 beside batch norm in float32."""
    model = convolutions(layers)
    for block in model:
        block[0] = nn.Conv2d(8, 8, 3, dtype=torch.bfloat16)
    return model


def masked(layers):
    """Buffers that hold infinities on purpose."""
    model = convolutions(layers)
    for block in model:
        block.register_buffer("mask", torch.full((8, 8), float("-inf")))
    return model


MODELS = {
    "float32": (convolutions, 2),
    "bfloat16": (lambda layers: convolutions(layers, torch.bfloat16), 2),
    "float64": (lambda layers: convolutions(layers, torch.float64), 2),
    "mixed": (mixed, 3),
    "masked": (masked, 2),
}


@pytest.mark.parametrize("layers", [1, 40])
@pytest.mark.parametrize("kind", MODELS)
def test_an_update_takes_as_many_kernels_for_many_tensors_as_for_few(kind, layers):
    build, expected = MODELS[kind]
    with fake_cuda() as gpu:
        ema = EMA(build(layers), buffers="average")
        ema.update()
        gpu.forget()
        ema.update()
        assert len(gpu.launches) == expected, gpu.launches
        assert not gpu.waits


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("buffers", ["statistics", "average", "copy"])
def test_options_take_no_more_kernels(buffers, flat, monkeypatch):
    # Fake tensors have no address; flat asks only whether it is still the same.
    monkeypatch.setattr(torch.Tensor, "data_ptr", lambda tensor: 0)
    with fake_cuda() as gpu:
        ema = EMA(masked(10), buffers=buffers, flat=flat)
        ema.update()
        gpu.forget()
        ema.update()
        assert len(gpu.launches) <= 2, gpu.launches


def test_large_casts_are_divided_so_that_little_memory_is_taken(monkeypatch):
    monkeypatch.setattr(torch_ops, "BLOCK", 1000)
    with fake_cuda() as gpu:
        ema = EMA(nn.Linear(70, 50, dtype=torch.bfloat16))
        ema.update()
        gpu.forget()
        ema.update()
        assert (
            gpu.launches
            == [
                "aten::_foreach_copy_",
                "aten::_foreach_lerp_.Scalar",
            ]
            * 4
        )  # 3,550 elements


def test_no_step_waits_for_the_device(make):
    """Not even the first, which looks whether weights were loaded before it."""
    with fake_cuda() as gpu:
        model = convolutions(2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        averager = make(model, optimizer)
        for _ in range(4):
            give_gradients(model)
            switches = averager.switches
            gpu.forget()
            optimizer.step()
            # A switch looks whether the average is finite.
            assert len(gpu.waits) <= averager.switches - switches, gpu.waits
        gpu.forget()
        averager.end_epoch()
        assert len(gpu.waits) <= 1


@pytest.mark.parametrize("layers", [1, 40])
def test_a_switch_waits_once(layers):
    with fake_cuda() as gpu:
        model = mixed(layers)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        sema = SwitchEMA(model, optimizer, switch_every=Steps(2), decay=0.5)
        for _ in range(2):
            give_gradients(model)
            gpu.forget()
            optimizer.step()
        assert sema.switches == 1
        assert gpu.waits == ["aten::_local_scalar_dense"]
        own = [name for name in gpu.launches if "add" not in name]  # not SGD's
        assert len(own) <= 25


def test_an_epoch_without_a_switch_does_not_wait():
    with fake_cuda() as gpu:
        model = convolutions(2)
        ema = EMA(model)
        ema.update()
        gpu.forget()
        ema.end_epoch()
        assert not gpu.waits


def test_showing_and_saving_does_not_wait():
    with fake_cuda() as gpu:
        model = convolutions(3)
        ema = EMA(model)
        ema.update()
        gpu.forget()
        with ema.averaged():
            pass
        ema.averaged_tensors()
        states = ema.state_dict(), ema.averaged_state_dict(), ema.live_state_dict()
        assert not gpu.waits
        for state in (states[0]["shadow"], *states[1:]):
            assert all(tensor.is_cuda for tensor in state.values())


def test_a_state_that_was_read_to_the_cpu_is_loaded():
    with fake_cuda():
        ema = EMA(convolutions(2))
        ema.update()
        state = ema.state_dict()
        state["shadow"] = {name: t.cpu() for name, t in state["shadow"].items()}
        resumed = EMA(convolutions(2))
        resumed.load_state_dict(state)
        assert resumed.steps == 1
        assert all(tensor.is_cuda for tensor in resumed.averaged_tensors().values())


@pytest.mark.parametrize("device", ["cuda", torch.device("cuda"), "cuda:0"])
def test_the_models_own_device_by_name_is_beside_the_model(device):
    with fake_cuda() as gpu:
        ema = EMA(convolutions(4), device=device)
        ema.update()
        gpu.forget()
        ema.update()
        assert len(gpu.launches) == 2


@pytest.mark.parametrize("optimizer_class", [FusedSGD, FusedAdam, FusedAdamW])
def test_fused_optimizers_average_after_one_kernel_of_torch(optimizer_class):
    with fake_cuda() as gpu:
        model = convolutions(6)
        optimizer = optimizer_class(model.parameters(), lr=0.1)
        sema = SwitchEMA(model, optimizer)
        for _ in range(2):
            give_gradients(model)
            gpu.forget()
            optimizer.step()
        assert sema.steps == 2
        fused = [name for name in gpu.launches if "_fused_" in name]
        averages = [name for name in gpu.launches if "lerp" in name]
        assert (len(fused), len(averages)) == (1, 2)
        assert len(gpu.launches) <= 4  # Adam counts its steps
        assert not gpu.waits


class Streams:
    """Stands for ``torch.cuda``, whose streams need a driver."""

    def __init__(self) -> None:
        self.waits = 0

    def Stream(self, device):
        return self

    def current_stream(self, device):
        return self

    @contextmanager
    def stream(self, stream):
        yield

    def wait_stream(self, other):
        pass

    def wait_event(self, event):
        pass

    def record_event(self):
        return self

    def synchronize(self):
        self.waits += 1


def test_offloading_copies_without_waiting(monkeypatch):
    streams = Streams()
    monkeypatch.setattr(torch, "get_device_module", lambda device: streams)
    with fake_cuda() as gpu:
        model = convolutions(3)
        ema = EMA(model, device="cpu")
        ema.update()
        assert streams.waits == 0
        gpu.forget()
        ema.update()
        assert not gpu.waits
        assert streams.waits == 2  # parameters and buffers of the step before
        assert set(gpu.launches) == {ATEN.copy_.default.name()}
        assert all(tensor.is_cpu for tensor in ema.state_dict()["shadow"].values())
        assert all(tensor.is_cuda for tensor in ema.averaged_state_dict().values())
