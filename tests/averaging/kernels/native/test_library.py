"""Where the compiled kernels come from, and what happens without them."""

import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from switch_ema import EMA, constant
from switch_ema.averaging.kernels.native import library as module

compiled = module.library.__wrapped__
"""The same without the memory of an earlier answer."""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    return tmp_path / "caches" / "switch-ema"


def test_a_library_is_compiled_once_and_kept(cache, monkeypatch):
    first = compiled(torch.float32)
    if first is None:  # no compiler on this machine
        assert list(cache.glob("*")) == []
        return
    (file,) = cache.iterdir()
    assert file.suffix == ".so"
    assert cache.stat().st_mode & 0o077 == 0
    monkeypatch.setattr(module, "_compile", None)  # would fail if it were called
    assert compiled(torch.float32) is not None
    with pytest.raises(TypeError):
        compiled(torch.float64)  # a file of its own


def test_a_folder_that_others_can_write_to_is_not_used(cache):
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    (cache / "planted.so").write_bytes(b"not mine")
    usable = compiled(torch.float32) is not None
    assert [file.name for file in cache.iterdir()] == ["planted.so"]
    cache.chmod(0o700)
    assert (compiled(torch.float32) is not None) == usable


@pytest.mark.parametrize(
    "setting",
    [
        {"SWITCH_EMA_NATIVE": "0"},
        {"CC": "/nowhere/cc"},
        {"CC": "false"},
    ],
)
def test_without_kernels_all_is_done_by_torch(cache, monkeypatch, setting):
    for name, value in setting.items():
        monkeypatch.setenv(name, value)
    assert compiled(torch.float32) is None
    assert not cache.exists() or list(cache.iterdir()) == []


def test_a_damaged_file_is_compiled_again(cache, monkeypatch, tmp_path):
    if compiled(torch.float32) is not None:
        (file,) = cache.iterdir()
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "others"))
        damaged = tmp_path / "others" / "switch-ema" / file.name
        damaged.parent.mkdir(parents=True)
        damaged.write_bytes(b"\x7fELF" + bytes(100))
        assert compiled(torch.float32) is not None
        assert damaged.read_bytes() == file.read_bytes()


def test_processes_that_start_together_do_not_disturb_each_other(cache):
    code = (
        "import torch, switch_ema\n"
        "model = torch.nn.Linear(300, 300)\n"
        "ema = switch_ema.EMA(model, decay=switch_ema.constant(0.9))\n"
        "ema.update()\n"
        "from switch_ema.averaging.kernels import native\n"
        "print(native.is_available())\n"
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache.parent)}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for _ in range(2)
    ]
    printed = {process.communicate(timeout=100)[0].strip() for process in running}
    assert printed == {str(compiled(torch.float32) is not None)}
    assert all(file.suffix == ".so" for file in cache.glob("*"))


def test_memory_that_was_exchanged_or_freed_is_never_read(arithmetic):
    """The kernels go by address, so each way to change an address is noticed."""
    torch.manual_seed(0)
    model = nn.Linear(50, 40, bias=False)
    ema = EMA(model, decay=constant(0.5))

    def check():
        before = ema.averaged_state_dict()["weight"]
        with torch.no_grad():
            model.weight.normal_()
        ema.update()
        middle = (before + model.weight.detach()) / 2
        torch.testing.assert_close(ema.averaged_state_dict()["weight"], middle)

    check()
    model.weight.data = model.weight.data.clone()
    check()
    storage = model.weight.untyped_storage()
    size = storage.size()
    storage.resize_(0)  # as sharding by hand does
    storage.resize_(size)
    check()
    model.weight.data = torch.empty(50, 40).t()
    check()
    model.to(torch.float64)
    check()
