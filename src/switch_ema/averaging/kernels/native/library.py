"""Compiles kernels.c once, in a fraction of a second, and loads it.

The library is stored in the user's cache folder (``$XDG_CACHE_HOME/switch-ema``) under
a name derived from the source, the flags and the processor architecture. Set
``SWITCH_EMA_NATIVE=0`` to disable it. The kernels are optional: whatever fails here,
torch's operations do the same work. :mod:`.cache` decides which files are trusted.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import torch

from switch_ema.averaging.kernels.native import cache

SOURCE = Path(__file__).with_name("kernels.c")
_SWITCH = "SWITCH_EMA_NATIVE"
_TIMEOUT = 60

# All kernels take a table, its number of rows and a number of threads first.
_ARGUMENTS = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int)
_LAST_ARGUMENTS = {
    "fetch": None,
    "lerp": ctypes.c_double,
    "lerp_finite": ctypes.c_double,
    "lerp_widened": ctypes.c_double,
    "lerp_dithered": ctypes.c_void_p,
    "copy": None,
    "exchange": ctypes.c_void_p,
    "split": ctypes.c_void_p,
    "join": ctypes.c_void_p,
    "first_non_finite": None,
    "sgd": ctypes.c_void_p,
    "adam": ctypes.c_void_p,
}
_RESULTS = {
    "lerp": ctypes.c_int,
    "lerp_widened": ctypes.c_int,
    "first_non_finite": ctypes.c_int64,
}
_REALS = {torch.float32: "float", torch.float64: "double"}
_CODES = {torch.float32: "f", torch.float64: "d"}
"""Type codes of Python's ``array``."""

# Try a new library in a separate process first: the output of a broken compiler may
# crash the process that loads it.
_TRIAL = """
import ctypes, sys
from array import array
path, code, *names = sys.argv[1:]
library = ctypes.CDLL(path)
for name in names:
    getattr(library, name)
shadow, live = array(code, [0, 2, 4]), array(code, [2, 4, 8])
table = array("q", [shadow.buffer_info()[0], live.buffer_info()[0], 3])
address = ctypes.c_void_p(table.buffer_info()[0])
library.lerp(address, ctypes.c_int64(1), 1, ctypes.c_double(0.5))
sys.exit(shadow.tolist() != [1, 3, 6])
"""
# Without contraction, results do not depend on the compiler or the number of threads.
_FLAGS = ("-O3", "-ffp-contract=off", "-fno-math-errno", "-fopenmp", "-shared", "-fPIC")


def is_available(dtype: torch.dtype = torch.float32) -> bool:
    """Whether kernels for a dtype can be used; compiles them if necessary."""
    return dtype in _REALS and library(dtype) is not None


def is_switched_off() -> bool:
    """Whether the user has disabled the kernels."""
    return os.environ.get(_SWITCH) == "0"


@functools.cache
def library(dtype: torch.dtype) -> ctypes.CDLL | None:
    """Return the kernels for a dtype; None if they cannot be compiled or loaded."""
    if is_switched_off() or os.name != "posix":
        return None
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    command = [*compiler.split(), f"-DREAL={_REALS[dtype]}", *_FLAGS, *_vectors()]
    try:
        return _load(command, dtype)
    except (OSError, subprocess.SubprocessError):
        return None


def _vectors() -> list[str]:
    """Return the compiler flag for AVX2 if torch uses it, or AVX512, on this CPU."""
    wide = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    return ["-mavx2"] if wide and is_x86 else []


def _load(command: list[str], dtype: torch.dtype) -> ctypes.CDLL:
    source = SOURCE.read_bytes()
    text = source + repr((command, platform.machine())).encode()
    name = f"kernels-{hashlib.sha256(text).hexdigest()[:16]}.kept"
    folder = cache.cache_folder()
    kept = None if folder is None else cache.read_kept(folder / name)
    if kept is not None:
        try:
            return _open(kept, dtype, folder)
        except OSError:  # functions are missing, say: compile it again
            pass
    with cache.work_folder(folder) as work:
        content = _compile(command, source, dtype, work)
        if folder is not None and work.parent == folder:
            with suppress(OSError):  # a full disk, say; the next start compiles again
                cache.keep(folder / name, content, work)
            cache.remove_leftovers(folder)
        return _open(content, dtype, folder)


def _compile(
    command: list[str], source: bytes, dtype: torch.dtype, work: Path
) -> bytes:
    path = work / "kernels.so"
    _run([*command, "-x", "c", "-", "-lm", "-o", str(path)], source, work)
    # In a frozen application, sys.executable is not a Python interpreter.
    if sys.executable and not hasattr(sys, "frozen"):
        trial = [sys.executable, "-I", "-S", "-c", _TRIAL, str(path), _CODES[dtype]]
        _run([*trial, *_LAST_ARGUMENTS], b"", work)
    return path.read_bytes()


def _run(command: list[str], text: bytes, work: Path) -> None:
    subprocess.run(
        command,
        input=text,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # Others must not be able to replace the compiler's temporary files either.
        env=os.environ | {"TMPDIR": str(work)},
        timeout=_TIMEOUT,
    )


def _open(content: bytes, dtype: torch.dtype, folder: Path | None) -> ctypes.CDLL:
    """Load these verified bytes rather than a path, whose file may have changed."""
    try:
        file = cache.sealed_file(content)
        try:
            return _declared(ctypes.CDLL(f"/proc/self/fd/{file}"), dtype)
        except OSError:
            os.close(file)
            raise
    except OSError:  # no in-memory files, or they cannot be executed
        with cache.work_folder(folder) as work:
            path = work / "kernels.so"
            path.write_bytes(content)
            return _declared(ctypes.CDLL(str(path)), dtype)


def _declared(found: ctypes.CDLL, dtype: torch.dtype) -> ctypes.CDLL:
    """Declare the types of all functions.

    Raises:
        OSError: a function is missing, or the library is for another dtype.
    """
    try:
        for name, number in _LAST_ARGUMENTS.items():
            last = [] if number is None else [number]
            getattr(found, name).argtypes = [*_ARGUMENTS, *last]
            getattr(found, name).restype = _RESULTS.get(name)
        size = found.element_size()
    except AttributeError as error:
        raise OSError(str(error)) from error
    # The loader identifies libraries by name, and the name of a closed file may be
    # reused: it may have returned the library for the other dtype.
    if size != dtype.itemsize:
        raise OSError(f"The library is for elements of {size} bytes.")
    return found
