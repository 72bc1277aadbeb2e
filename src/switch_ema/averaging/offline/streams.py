"""Safetensors files that are read and written in blocks of a few megabytes.

The library's own functions hold a whole file in memory to write it, and map all of it
to read it. The format is a header in JSON and then the bytes of the tensors; the
library checks the header, and the bytes are read and written here.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from switch_ema._extras import needed

BLOCK = 1 << 17
"""Elements that are read, averaged and written at once: small enough for caches."""

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "C64": torch.complex64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""The names of the format."""

_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class TensorInfo(NamedTuple):
    """What is known of a tensor before it is read."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """How many numbers it has."""
        return torch.Size(self.shape).numel()

    @property
    def bytes(self) -> int:
        """How much memory it takes."""
        return self.elements * self.dtype.itemsize


class StoredTensor(NamedTuple):
    """A tensor in a safetensors file."""

    path: Path
    start: int
    """Where its bytes begin."""
    info: TensorInfo

    def blocks(self) -> Iterator[Tensor]:
        """Read it as flat blocks of at most ``BLOCK`` elements, in order.

        A block is valid until the next one is asked for, which uses its memory again.
        """
        most = min(BLOCK, self.info.elements)
        whole, memory = new_block(self.info.dtype, most)
        view, size = memoryview(memory), self.info.dtype.itemsize
        with open(self.path, "rb", buffering=0) as file:
            file.seek(self.start)
            for first in range(0, self.info.elements, BLOCK):
                count = min(BLOCK, self.info.elements - first)
                if file.readinto(view[: count * size]) != count * size:
                    raise ValueError(f"{self.path} has become shorter meanwhile.")
                yield whole[:count]


def require_safetensors(user: str) -> Any:
    """Import ``safetensors.torch``, or say who needs it and how to get it."""
    with needed("safetensors", extra="files", user=user):
        import safetensors.torch
    return safetensors.torch


def read_header(path: Path, user: str) -> dict[str, StoredTensor]:
    """Return the tensors of a safetensors file, which is not read further.

    Raises:
        ValueError: the file is truncated or damaged, or has a dtype that torch lacks.
    """
    files = require_safetensors(user)
    try:
        with files.safe_open(path, framework="pt"):
            pass  # it checks that the tensors cover the file without gaps
    except OSError:
        raise
    except Exception as error:  # SafetensorError derives from Exception alone
        raise ValueError(f"{path} is not a whole safetensors file: {error}.") from error
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    unknown = sorted({entry["dtype"] for entry in header.values()} - set(DTYPES))
    if unknown:
        raise ValueError(f"{path} has tensors of unknown dtypes: {', '.join(unknown)}.")
    return {
        name: StoredTensor(
            path,
            8 + length + entry["data_offsets"][0],
            TensorInfo(DTYPES[entry["dtype"]], tuple(entry["shape"])),
        )
        for name, entry in header.items()
    }


def write_blocks(
    path: str | os.PathLike[str],
    tensors: Mapping[str, TensorInfo],
    blocks: Callable[[str], Iterator[Tensor]],
) -> None:
    """Write a safetensors file: the header first, then one tensor after the other.

    Args:
        path: where.
        tensors: what the file has.
        blocks: returns the flat blocks of a tensor, in any dtype, by its name.
    """
    # Wide dtypes first, so that every tensor begins at a multiple of its item size.
    order = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in order:
        start, end = end, end + tensors[name].bytes
        header[name] = {
            "dtype": _NAMES[tensors[name].dtype],
            "shape": list(tensors[name].shape),
            "data_offsets": [start, end],
        }
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    with open(path, "wb", buffering=0) as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        for name in order:
            info = tensors[name]
            rounded, memory = new_block(info.dtype, min(BLOCK, info.elements))
            for block in blocks(name):
                rounded[: block.numel()].copy_(block)
                _write_all(
                    file, memoryview(memory)[: block.numel() * info.dtype.itemsize]
                )


def new_block(dtype: torch.dtype, elements: int) -> tuple[Tensor, bytearray]:
    """Return a flat tensor and the memory it shares, without a need for NumPy."""
    memory = bytearray(max(elements, 1) * dtype.itemsize)
    return torch.frombuffer(memory, dtype=torch.uint8).view(dtype)[:elements], memory


def can_be_stored(dtype: torch.dtype) -> bool:
    """Whether the format has a name for the dtype."""
    return dtype in _NAMES


def _write_all(file: Any, rest: memoryview) -> None:
    while rest:
        rest = rest[file.write(rest) :]
