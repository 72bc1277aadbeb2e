"""Where the compiled kernels come from, and what happens without them."""

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile

import pytest
import torch
from torch import nn

from switch_ema import EMA, constant
from switch_ema.averaging.kernels.native import library as module
from tests.averaging.kernels.native.compilers import BROKEN_COMPILERS, broken_compiler

compiled = module.library.__wrapped__
"""The same without the memory of an earlier answer."""


QUICKLY = ("-O0", *module._FLAGS[1:])
"""What is tested is where a library comes from, not its speed."""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_FLAGS", QUICKLY)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    return tmp_path / "caches" / "switch-ema"


def test_a_library_is_compiled_once_and_kept(cache, monkeypatch):
    first = compiled(torch.float32)
    if first is None:  # no compiler on this machine
        assert list(cache.glob("*")) == []
        return
    (file,) = cache.iterdir()
    assert file.stat().st_mode & 0o077 == cache.stat().st_mode & 0o077 == 0
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


FOREIGN = "void planted(void) {}"


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    """Code of somebody else, which has all our functions and knows our format."""
    if not module.is_available():
        pytest.skip("there is no C compiler")
    folder = tmp_path_factory.mktemp("foreign")
    source, path = folder / "planted.c", folder / "planted.so"
    source.write_text(module.SOURCE.read_text() + FOREIGN)
    command = [*os.environ.get("CC", "cc").split(), "-DREAL=float", *QUICKLY]
    subprocess.run([*command, str(source), "-lm", "-o", str(path)], check=True)
    path.write_bytes(path.read_bytes() + hashlib.sha256(path.read_bytes()).digest())
    path.chmod(0o600)
    return path


@pytest.fixture
def kept(cache, foreign, tmp_path, monkeypatch):
    """The file that a first start has kept, under a name that was never loaded."""
    assert compiled(torch.float32) is not None
    moved = cache.parent.rename(tmp_path / "moved")
    monkeypatch.setenv("XDG_CACHE_HOME", str(moved))
    (file,) = (moved / "switch-ema").iterdir()
    return file


def assert_is_ours(library):
    assert library is not None
    assert not hasattr(library, "planted")


def plant(foreign, path):
    """Exchange a file, not the content of one that may be loaded."""
    path.unlink()
    shutil.copy(foreign, path)


def test_a_symlink_is_not_followed(kept, foreign):
    kept.unlink()
    kept.symlink_to(foreign)
    assert_is_ours(compiled(torch.float32))
    assert not kept.is_symlink()


def test_a_file_planted_before_the_folder_was_tightened_is_not_loaded(kept, foreign):
    plant(foreign, kept)
    if os.geteuid() == 0:
        os.chown(kept, 12345, 12345)
    else:  # somebody else may have written it, too
        kept.chmod(0o666)
    assert_is_ours(compiled(torch.float32))


def test_a_file_exchanged_between_check_and_load_is_not_loaded(
    kept, foreign, monkeypatch
):
    load, exchanged = ctypes.CDLL, []

    def exchange_and_load(path, *arguments, **options):
        exchanged.append(path)
        plant(foreign, kept)
        return load(path, *arguments, **options)

    monkeypatch.setattr(ctypes, "CDLL", exchange_and_load)
    assert_is_ours(compiled(torch.float32))
    assert exchanged


def test_a_folder_above_that_others_can_write_to_is_enough_to_refuse(kept, foreign):
    plant(foreign, kept)
    above = kept.parent.parent
    above.chmod(0o777)
    assert_is_ours(compiled(torch.float32))
    assert kept.read_bytes() == foreign.read_bytes()
    above.chmod(0o1777)  # where nobody else can exchange what is mine, as in /tmp
    assert hasattr(compiled(torch.float32), "planted")


def test_without_a_place_of_its_own_nothing_is_compiled(cache, tmp_path, monkeypatch):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(shared))
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    assert compiled(torch.float32) is None
    assert [path.name for path in shared.iterdir()] == []


def test_a_truncated_library_does_not_end_the_process(kept):
    whole = kept.read_bytes()
    kept.write_bytes(whole[:4096])
    code = (
        "import torch\n"
        "from switch_ema.averaging.kernels.native import library\n"
        f"library._FLAGS = {QUICKLY}\n"
        "print(library.library(torch.float32) is not None)\n"
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(kept.parent.parent)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
    assert kept.read_bytes() == whole


def test_a_library_without_our_functions_is_compiled_anew(kept, tmp_path):
    source, path = tmp_path / "other.c", tmp_path / "other.so"
    source.write_text(FOREIGN)
    command = [*os.environ.get("CC", "cc").split(), *QUICKLY]
    subprocess.run([*command, str(source), "-o", str(path)], check=True)
    content = path.read_bytes()
    kept.unlink()
    kept.write_bytes(content + hashlib.sha256(content).digest())
    assert_is_ours(compiled(torch.float32))


def test_what_killed_processes_left_is_removed(cache):
    cache.mkdir(mode=0o700, parents=True)
    left = [cache / "compiling-abc", cache / "kernels-1.so.77", cache / "kernels-1.so"]
    left[0].mkdir()
    (left[0] / "kernels.so").touch()
    for path in left[1:]:
        path.touch()
    running = cache / "compiling-now"
    running.mkdir()
    for path in left:
        os.utime(path, (0, 0))
    if compiled(torch.float32) is not None:
        assert not any(path.exists() for path in left)
        assert running.exists()


def test_where_there_are_no_files_in_memory_a_private_folder_serves(kept, monkeypatch):
    monkeypatch.delattr(os, "memfd_create", raising=False)
    assert_is_ours(compiled(torch.float32))
    assert list(kept.parent.iterdir()) == [kept]


@pytest.mark.parametrize("how", BROKEN_COMPILERS)
def test_a_broken_compiler_is_as_none(cache, tmp_path, monkeypatch, how):
    monkeypatch.setenv("CC", broken_compiler(tmp_path / "broken-cc", how))
    if how == "takes for ever":
        monkeypatch.setattr(module, "_TIMEOUT", 0.2)
    assert compiled(torch.float32) is None
    assert list(cache.iterdir()) == []


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
    printed = {process.communicate(timeout=600)[0].strip() for process in running}
    assert printed == {str(compiled(torch.float32) is not None)}
    assert len(list(cache.glob("*"))) <= 2  # one for each type of elements


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
