"""Compiling and loading kernels.c, which takes a fraction of a second, once.

The library is kept in the user's cache folder (``$XDG_CACHE_HOME/switch-ema``), under a
name that changes with the source, the flags and the kind of processor. Set
``SWITCH_EMA_NATIVE=0`` to do without. Nothing here is ever needed: whatever goes wrong,
torch's kernels do the same work.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

import torch

SOURCE = Path(__file__).with_name("kernels.c")
SWITCH = "SWITCH_EMA_NATIVE"
_TIMEOUT = 60

# The table, how many rows it has, how many threads may work; then what differs.
_ARGUMENTS = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int)
_LAST_ARGUMENTS = {
    "fetch": None,
    "lerp": ctypes.c_double,
    "lerp_finite": ctypes.c_double,
    "lerp_widened": ctypes.c_double,
    "lerp_dithered": ctypes.c_void_p,
    "copy": None,
    "exchange": ctypes.c_void_p,
    "first_non_finite": None,
    "sgd": ctypes.c_void_p,
    "adam": ctypes.c_void_p,
}
_REALS = {torch.float32: "float", torch.float64: "double"}
# No contraction: the same numbers from every compiler and with any number of threads.
_FLAGS = ("-O3", "-ffp-contract=off", "-fno-math-errno", "-fopenmp", "-shared", "-fPIC")


def is_available(dtype: torch.dtype = torch.float32) -> bool:
    """Whether there are kernels for a type of elements; compiles them."""
    return dtype in _REALS and library(dtype) is not None


def is_switched_off() -> bool:
    """Whether somebody has chosen to do without."""
    return os.environ.get(SWITCH) == "0"


@functools.cache
def library(dtype: torch.dtype) -> ctypes.CDLL | None:
    """Return the kernels for one type of elements, None where there can be none."""
    if is_switched_off() or os.name != "posix":
        return None
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    command = [*compiler.split(), f"-DREAL={_REALS[dtype]}", *_FLAGS, *_vectors()]
    try:
        found = _load(command)
    except (OSError, subprocess.SubprocessError):
        return None
    for name, number in _LAST_ARGUMENTS.items():
        last = [] if number is None else [number]
        getattr(found, name).argtypes = [*_ARGUMENTS, *last]
    found.first_non_finite.restype = ctypes.c_int64
    return found


def _vectors() -> list[str]:
    """Return the flag for the vectors that torch itself uses on this processor."""
    wide = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    return ["-mavx2"] if wide and is_x86 else []


def _load(command: list[str]) -> ctypes.CDLL:
    text = SOURCE.read_bytes() + repr((command, platform.machine())).encode()
    name = f"kernels-{hashlib.sha256(text).hexdigest()[:16]}.so"
    folder = _cache_folder()
    if folder is None:
        # A library that is loaded does not need its file any more.
        with tempfile.TemporaryDirectory() as temporary:
            return ctypes.CDLL(str(_compile(command, Path(temporary) / name)))
    path = folder / name
    try:
        return ctypes.CDLL(str(path))
    except OSError:  # not there yet, or damaged
        return ctypes.CDLL(str(_compile(command, path)))


def _compile(command: list[str], path: Path) -> Path:
    # Several processes may do so at a time: each renames its own complete file.
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        subprocess.run(
            [*command, str(SOURCE), "-lm", "-o", str(partial)],
            check=True,
            capture_output=True,
            timeout=_TIMEOUT,
        )
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def _cache_folder() -> Path | None:
    """Return a folder that only this user can write to, None if there is none."""
    try:
        caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(caches) / "switch-ema"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except (OSError, RuntimeError):  # RuntimeError: there is no home
        return None
    by_others = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    is_mine = status.st_uid == os.getuid() and not by_others
    return folder if is_mine and os.access(folder, os.W_OK) else None
