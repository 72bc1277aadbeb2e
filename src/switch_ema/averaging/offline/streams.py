"""Reads and writes safetensors files in blocks of a few megabytes.

The safetensors library holds a whole file in memory to write it, and maps all of it to
read it. A file is a JSON header followed by the bytes of the tensors, so this module
needs no library.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from switch_ema._checks import printable
from switch_ema._extras import needed

BLOCK = 1 << 15
"""Elements that are read, averaged and written at once: few enough for the cache, and
for torch to use a single thread."""

PART = 1 << 22
"""Elements of a tensor that a thread processes as one task."""

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

_LONGEST_HEADER = 100_000_000
"""In bytes, as the safetensors library has it."""


_FOR_TORCH = ("format", "pt")
"""Metadata that other libraries require."""


class TensorInfo(NamedTuple):
    """Dtype and shape of a tensor that has not been read yet."""

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


class Part(NamedTuple):
    """A range of elements of a flattened tensor."""

    name: str
    first: int
    elements: int


class StoredTensor(NamedTuple):
    """A tensor in a safetensors file."""

    path: Path
    start: int
    """Where its bytes begin."""
    info: TensorInfo

    @property
    def place(self) -> tuple[int, int]:
        """Sorts tensors as they follow each other, empty ones first."""
        return self.start, self.info.bytes

    def blocks(self, first: int, count: int) -> Iterator[Tensor]:
        """Read elements as flat blocks of at most ``BLOCK``, in order.

        A block is valid until the next one, which reuses its memory.
        """
        whole, memory = _new_block(self.info.dtype, min(BLOCK, count))
        view, size = memoryview(memory), self.info.dtype.itemsize
        with open(self.path, "rb", buffering=0) as file:
            file.seek(self.start + first * size)
            for done in range(0, count, BLOCK):
                some = min(BLOCK, count - done)
                if file.readinto(view[: some * size]) != some * size:
                    raise ValueError(f"{self.path} was truncated while being read.")
                yield whole if some == whole.numel() else whole[:some]


def require_safetensors(user: str) -> Any:
    """Import ``safetensors.torch``, or raise what needs it and how to install it."""
    with needed("safetensors", extra="files", user=user):
        import safetensors.torch
    return safetensors.torch


class Header(NamedTuple):
    """The header of a safetensors file."""

    tensors: dict[str, StoredTensor]
    texts: dict[str, str]
    """Its metadata, except that the file is for PyTorch."""


def read_header(path: Path) -> Header:
    """Read the header of a safetensors file, and nothing else.

    Raises:
        ValueError: the file is truncated or damaged, or has a dtype that torch lacks.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        raw = file.read(length) if length <= min(size, _LONGEST_HEADER) else b""
    try:
        if not raw or len(raw) < length:
            raise ValueError("its header is incomplete")
        header = json.loads(raw.decode(), object_pairs_hook=_unique)
        if not isinstance(header, dict):
            raise ValueError("its header is not an object")
        texts = _texts(header.pop("__metadata__", None))
        stored = {
            name: _stored(path, 8 + length, name, entry)
            for name, entry in header.items()
        }
        # Tensors that overlap, or gaps between them, are signs of damage.
        end = 8 + length
        for name, tensor in sorted(stored.items(), key=lambda item: item[1].place):
            if tensor.start != end:
                raise ValueError(f"the data of {name} are not where they should be")
            end += tensor.info.bytes
        if end != size:
            raise ValueError(f"its tensors end at byte {end}, the file at {size}")
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} is not a whole safetensors file: {printable(str(error))}."
        ) from None
    return Header(stored, texts)


def _texts(metadata: Any) -> dict[str, str]:
    """Check the metadata of a header, which may be absent."""
    texts = {} if metadata is None else metadata
    if not isinstance(texts, dict) or not all(
        isinstance(text, str) for text in texts.values()
    ):
        raise ValueError("its metadata are not texts by name")
    return {name: text for name, text in texts.items() if (name, text) != _FOR_TORCH}


def _stored(path: Path, first: int, name: str, entry: Any) -> StoredTensor:
    """Check the entry of a tensor in a header."""
    try:
        dtype, shape, (start, end) = map(
            entry.__getitem__, ("dtype", "shape", "data_offsets")
        )
        numbers = [start, end, *shape]
        is_valid = isinstance(dtype, str) and all(type(n) is int for n in numbers)
    except (AttributeError, KeyError, TypeError, ValueError):
        is_valid = False
    if not is_valid or min(numbers) < 0 or prod(filter(None, shape)) >= 1 << 62:
        raise ValueError(f"the entry of {name} is invalid")
    if dtype not in DTYPES:
        raise ValueError(f"{name} has the unknown dtype {dtype}")
    tensor = StoredTensor(path, first + start, TensorInfo(DTYPES[dtype], tuple(shape)))
    if tensor.info.bytes != end - start:
        raise ValueError(f"the size of {name} does not fit its shape")
    return tensor


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name occurs twice in its header")
    return found


def write_blocks(
    path: str | os.PathLike[str],
    tensors: Mapping[str, TensorInfo],
    blocks: Callable[[Part], Iterator[Tensor]],
    *,
    threads: int,
    metadata: Mapping[str, str] | None = None,
) -> Iterator[int]:
    """Write a safetensors file: the header first, then the tensors part by part.

    Args:
        path: where.
        tensors: what the file has.
        blocks: returns the flat blocks of a part of a tensor, in any dtype.
        threads: how many parts are made and written at a time. One takes whole tensors,
            one after the other.
        metadata: texts of the header.

    Yields:
        How many more bytes of the tensors are written.
    """
    header, starts = _layout(tensors, metadata or dict([_FOR_TORCH]))
    with open(path, "wb", buffering=0) as file:
        _write_all(file, memoryview(header))
        file.truncate(len(header) + sum(info.bytes for info in tensors.values()))

    def write(part: Part) -> int:
        dtype = tensors[part.name].dtype
        rounded, memory = _new_block(dtype, min(BLOCK, part.elements))
        view, size = memoryview(memory), dtype.itemsize
        with open(path, "r+b", buffering=0) as file:
            file.seek(starts[part.name] + part.first * size)
            for block in blocks(part):
                round_once(block, out=rounded[: block.numel()])
                _write_all(file, view[: block.numel() * size])
        return part.elements * size

    largest = max((info.elements for info in tensors.values()), default=0)
    most = PART if threads > 1 else max(largest, 1)
    parts = [
        Part(name, first, min(most, tensors[name].elements - first))
        for name in starts
        for first in range(0, tensors[name].elements, most)
    ]
    with ThreadPoolExecutor(threads) as pool:
        try:
            yield from pool.map(write, parts)
        finally:  # after an error or an interrupt, the other parts are not needed
            pool.shutdown(cancel_futures=True)


def _layout(
    tensors: Mapping[str, TensorInfo], metadata: Mapping[str, str]
) -> tuple[bytes, dict[str, int]]:
    """Return the start of a safetensors file, and where each tensor begins in it."""
    # Wide dtypes first, so that every tensor begins at a multiple of its item size.
    order = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    entries: dict[str, Any] = {"__metadata__": dict(metadata)}
    places, end = {}, 0
    for name in order:
        places[name], end = end, end + tensors[name].bytes
        entries[name] = {
            "dtype": _NAMES[tensors[name].dtype],
            "shape": list(tensors[name].shape),
            "data_offsets": [places[name], end],
        }
    raw = json.dumps(entries, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    header = len(raw).to_bytes(8, "little") + raw
    return header, {name: len(header) + place for name, place in places.items()}


def _new_block(dtype: torch.dtype, elements: int) -> tuple[Tensor, bytearray]:
    """Return a flat tensor and the memory it shares, without a need for NumPy."""
    memory = bytearray(max(elements, 1) * dtype.itemsize)
    return torch.frombuffer(memory, dtype=torch.uint8).view(dtype)[:elements], memory


def round_once(exact: Tensor, *, out: Tensor) -> Tensor:
    """Round numbers to the dtype of ``out``, which is returned.

    From float64, torch rounds to float32 first and then to 16 or 8 bits; a value that
    the first rounding puts halfway between two results may then go the wrong way. So
    values are truncated to float32 here, with the last bit set if anything was cut off
    (round to odd), which is never halfway. (Below 1e-38, float32 has fewer bits, and
    bfloat16 may be rounded twice.)
    """
    if exact.dtype != torch.float64 or out.dtype.itemsize > 2:
        return out.copy_(exact)
    bits = exact.contiguous().view(torch.int64)
    odd = (bits & _CUT).add_(_CUT).bitwise_or_(bits).bitwise_and_(~_CUT)
    return out.copy_(odd.view(torch.float64))


_CUT = (1 << 29) - 1
"""The bits of a float64 that a float32 does not have."""


def can_be_stored(dtype: torch.dtype) -> bool:
    """Whether the format has a name for the dtype."""
    return dtype in _NAMES


def _write_all(file: Any, rest: memoryview) -> None:
    while rest:
        rest = rest[file.write(rest) :]
