"""The order of operations of an offloaded shadow, with fakes for the accelerator.

No accelerator is needed: streams and events only write down what is asked of them,
and the copies are real ones on the CPU.
"""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from switch_ema import EMA, constant
from switch_ema.averaging.model.slots import all_slots
from switch_ema.averaging.shadow import offload
from switch_ema.averaging.shadow.groups import (
    CastGroup,
    DenseGroup,
    PackedGroup,
    SameGroup,
)
from switch_ema.averaging.shadow.offload import OffloadedGroup
from switch_ema.averaging.shadow.shadow import group_class
from switch_ema.averaging.shadow.storage import Storage


class FakeEvent:
    def __init__(self, log: list[str], name: str) -> None:
        self.log, self.name = log, name

    def synchronize(self) -> None:
        self.log.append(f"host waits for {self.name}")


class FakeStream:
    def __init__(self, log: list[str], name: str) -> None:
        self.log, self.name, self.events = log, name, 0

    def wait_stream(self, other: "FakeStream") -> None:
        self.log.append(f"{self.name} waits for {other.name}")

    def wait_event(self, event: FakeEvent) -> None:
        self.log.append(f"{self.name} waits for {event.name}")

    def record_event(self) -> FakeEvent:
        self.events += 1
        return FakeEvent(self.log, f"copy {self.events}")


class FakeAccelerator(TorchDispatchMode):
    """Stands for ``torch.cuda``, and logs copies and averages as they happen."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[str] = []
        self.main = self.active = FakeStream(self.log, "main")

    def Stream(self, device: torch.device) -> FakeStream:
        return FakeStream(self.log, "side")

    def current_stream(self, device: torch.device) -> FakeStream:
        return self.active

    @contextmanager
    def stream(self, stream: FakeStream):
        before, self.active = self.active, stream
        yield
        self.active = before

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.copy_.default and self.active.name == "side":
            non_blocking = (kwargs or {}).get("non_blocking") or args[2:] == (True,)
            self.log.append(f"side copies, blocking={not non_blocking}")
        if func is torch.ops.aten.lerp_.Scalar:
            self.log.append("host averages")
        return func(*args, **(kwargs or {}))


@pytest.fixture
def accelerator(monkeypatch):
    fake = FakeAccelerator()
    monkeypatch.setattr(torch, "get_device_module", lambda device: fake)
    monkeypatch.setattr(offload, "_page_locked_like", torch.empty_like)
    return fake


def offloaded_ema(model: nn.Module, monkeypatch, **options) -> EMA:
    """Make an averager that takes the CPU for an accelerator."""
    monkeypatch.setattr(
        "switch_ema.averaging.shadow.shadow.group_class",
        lambda slot, storage: OffloadedGroup,
    )
    return EMA(model, decay=constant(0.9), **options)


def move(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)


def test_order_of_operations(accelerator, monkeypatch):
    model = nn.Linear(3, 2)
    ema = offloaded_ema(model, monkeypatch)
    with accelerator:
        ema.update()
        ema.update()
        ema.state_dict()
    copy = [
        "side waits for main",  # the optimizer's step is complete
        "side copies, blocking=False",
        "side copies, blocking=False",
    ]
    average = ["host averages", "host averages"]
    assert accelerator.log == [
        *copy,
        "main waits for copy 1",  # nothing overwrites the weights under the copy
        "host waits for copy 1",  # the first copy is averaged before it is replaced
        *average,
        *copy,
        "main waits for copy 2",
        "host waits for copy 2",  # reading completes the second
        *average,
    ]


def look(ema):
    with ema.averaged():
        pass


READS = {
    "averaged": look,
    "averaged_state_dict": lambda ema: ema.averaged_state_dict(),
    "averaged_tensors": lambda ema: ema.averaged_tensors(),
    "state_dict": lambda ema: ema.state_dict(),
    "refresh": lambda ema: ema.refresh(),
    "switch": lambda ema: ema._write_live(),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_every_reader_sees_the_last_update(accelerator, monkeypatch, read):
    model = nn.Linear(3, 2)
    ema = offloaded_ema(model, monkeypatch)
    move(model)
    ema.update()
    read(ema)
    assert [entry for entry in accelerator.log if "host" in entry] == [
        "host waits for copy 1"
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_agrees_with_a_shadow_beside_the_model(accelerator, monkeypatch, dtype):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).to(dtype)
    beside = EMA(model, decay=constant(0.9))
    ema = offloaded_ema(model, monkeypatch)
    for step in range(4):
        move(model)
        beside.update()
        ema.update()
        if step == 1:
            ema.load_state_dict(ema.state_dict())
    expected = beside.state_dict()["shadow"]
    for name, tensor in ema.state_dict()["shadow"].items():
        torch.testing.assert_close(tensor, expected[name])


def test_a_device_without_streams_is_waited_for(accelerator, monkeypatch):
    monkeypatch.setattr(torch, "get_device_module", lambda device: SimpleNamespace())
    model = nn.Linear(3, 2)
    beside = EMA(model, decay=constant(0.9))
    ema = offloaded_ema(model, monkeypatch)
    for _ in range(3):
        move(model)
        beside.update()
        ema.update()
    expected = beside.state_dict()["shadow"]
    for name, tensor in ema.state_dict()["shadow"].items():
        torch.testing.assert_close(tensor, expected[name])


def test_a_device_without_page_locked_memory_copies_to_other_memory(monkeypatch):
    empty_like = torch.empty_like

    def no_pinned_memory(tensor, *, pin_memory=False, **options):
        if pin_memory:
            raise NotImplementedError
        return empty_like(tensor, **options)

    monkeypatch.setattr(torch, "empty_like", no_pinned_memory)
    live = torch.randn(4, 3).t()
    staged = offload._page_locked_like(live)
    assert (staged.shape, staged.stride()) == (live.shape, live.stride())


def test_loading_is_not_averaged_over(accelerator, monkeypatch):
    model = nn.Linear(3, 2)
    ema = offloaded_ema(model, monkeypatch)
    kept = ema.state_dict()
    move(model)
    ema.update()
    ema.load_state_dict(kept)
    for name, tensor in ema.state_dict()["shadow"].items():
        assert torch.equal(tensor, kept["shadow"][name])


def slot_on(device: str) -> SimpleNamespace:
    """Stand in for a slot whose tensor is on a device that need not be there."""
    tensor = SimpleNamespace(device=torch.device(device), dtype=torch.float32)
    return SimpleNamespace(tensor=tensor, local=tensor, is_buffer=False, stays=True)


@pytest.mark.parametrize(
    ("live", "shadow", "kind"),
    [
        ("cuda", "cpu", OffloadedGroup),
        ("xpu", "cpu", OffloadedGroup),
        ("cuda", None, SameGroup),
        ("cpu", "cuda", CastGroup),
    ],
)
def test_device_cpu_offloads_from_accelerators_only(live, shadow, kind):
    device = None if shadow is None else torch.device(shadow)
    assert group_class(slot_on(live), Storage(device=device)) is kind


def test_a_model_on_the_cpu_is_not_offloaded():
    ema = EMA(model := nn.Linear(3, 2), device="cpu")
    kinds_used = {group_class(slot, ema._shadow.storage) for slot in all_slots(model)}
    assert kinds_used <= {DenseGroup, PackedGroup}
