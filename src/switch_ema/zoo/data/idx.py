"""MNIST's published files: arrays in the idx format, plain or compressed by gzip."""

import gzip
import math
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from switch_ema.bench.errors import UsageError

_BYTES = 8
"""The code of unsigned bytes in an idx header."""


def read_idx(
    files: Sequence[Path],
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Read images and labels of training, and of tests, from four idx files."""
    x, y, x_test, y_test = (_read_array(path) for path in files)
    for images, labels, path in ((x, y, files[0]), (x_test, y_test, files[2])):
        if images.ndim != 3 or labels.shape != (len(images),):
            raise UsageError(
                f"{path.parent} must have one label per image, got {path.name} with "
                f"the shape {images.shape} and labels with the shape {labels.shape}."
            )
    return x, y, x_test, y_test


def _read_array(path: Path) -> np.ndarray:
    """Read one file: two zeros, the type, the rank, the sizes, then the values."""
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rb") as file:
            content = file.read()
        zeros, kind, rank = struct.unpack_from(">HBB", content)
        shape = struct.unpack_from(f">{rank}I", content, 4)
    except (OSError, EOFError, zlib.error, struct.error) as error:
        raise UsageError(f"{path} cannot be read: {error}.") from None
    values = np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * rank)
    if zeros or kind != _BYTES or math.prod(shape) != len(values):
        raise UsageError(
            f"{path} must be an idx file of {math.prod(shape):,} bytes after its "
            f"header, got {len(values):,}."
        )
    # A copy, since the buffer of a file cannot be written to.
    return values.reshape(shape).copy()
