"""CIFAR's published files: pickles, read without running what they may contain.

A pickle can import and call anything. This reader resolves only the three names that
CIFAR's files contain (NumPy's array, its dtype and their constructor), and not to NumPy
but to placeholders, which accept arrays of bytes and nothing else.
"""

import io
import math
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from switch_ema.bench.errors import UsageError

SIDE = 32
_LABELS = ("fine_labels", "labels")
"""CIFAR-100 has fine and coarse labels, CIFAR-10 one kind."""


def read_cifar(
    files: Sequence[Path],
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Read CIFAR-10 or CIFAR-100 from its published files, the last one for tests.

    Returns:
        Training images as bytes (count, 32, 32, 3), their labels, and the same of the
        test images.
    """
    *training, testing = [_read_batch(path) for path in files]
    images, labels = (np.concatenate(parts) for parts in zip(*training, strict=True))
    return images, labels, *testing


def _read_batch(path: Path) -> tuple[np.ndarray, np.ndarray]:
    try:
        content = _Unpickler(io.BytesIO(path.read_bytes()), encoding="latin1").load()
    except Exception as error:  # damaged pickles raise many kinds
        raise UsageError(f"{path} cannot be read: {error}.") from None
    found = content if isinstance(content, dict) else {}
    labels = next((found[name] for name in _LABELS if name in found), None)
    pixels = found.get("data")
    shape = (len(labels), 3 * SIDE**2) if isinstance(labels, list) else None
    whole = isinstance(labels, list) and all(type(label) is int for label in labels)
    if not whole or not isinstance(pixels, _Bytes) or pixels.shape != shape:
        raise UsageError(
            f"{path} must contain labels and, for each of them, an image of {SIDE} by "
            f"{SIDE} pixels under data, as CIFAR's files do."
        )
    # Stored as whole channels: first all red values, then green, then blue.
    images = pixels.array().reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
    return images, np.array(labels)


class _Dtype:
    """Stands for ``numpy.dtype``; only that of bytes is accepted."""

    def __init__(self, kind: Any, *_: Any) -> None:
        if kind not in ("u1", b"u1"):
            raise ValueError(f"arrays must hold bytes (u1), got {kind!r}")

    def __setstate__(self, state: Any) -> None:
        """Accept byte order and alignment, which bytes do not have."""


class _Bytes:
    """Stands for ``numpy.ndarray``: an array of bytes."""

    shape: tuple[int, ...]

    def __setstate__(self, state: Any) -> None:
        """Take version, shape, dtype, whether it is in Fortran's order, and bytes."""
        _, shape, dtype, fortran, raw = state
        # Python 2 stored bytes as text.
        raw = raw.encode("latin1") if isinstance(raw, str) else raw
        if not isinstance(dtype, _Dtype) or fortran or math.prod(shape) != len(raw):
            raise ValueError("an array must have as many bytes as its shape says")
        self.shape, self._raw = tuple(shape), raw

    def array(self) -> np.ndarray:
        """Return the array."""
        # A copy, since bytes cannot be written to.
        return np.frombuffer(self._raw, dtype=np.uint8).reshape(self.shape).copy()


def _reconstruct(kind: Any, *_: Any) -> _Bytes:
    """Stand for the function that makes an empty array, filled afterwards."""
    if kind is not _Bytes:
        raise ValueError("only arrays may be made")
    return _Bytes()


class _Unpickler(pickle.Unpickler):
    """Reads containers, numbers, text and arrays of bytes."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a placeholder; nothing is imported."""
        known = {
            "numpy.ndarray": _Bytes,
            "numpy.dtype": _Dtype,
            # NumPy 2 renamed the module.
            "numpy.core.multiarray._reconstruct": _reconstruct,
            "numpy._core.multiarray._reconstruct": _reconstruct,
        }
        try:
            return known[f"{module}.{name}"]
        except KeyError:
            raise ValueError(
                f"it must contain only data, got {module}.{name}"
            ) from None
