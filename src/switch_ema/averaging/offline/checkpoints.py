"""Reads checkpoints on disk one tensor at a time, in three formats.

- safetensors: a file, or a folder with shards and their index;
- torch.distributed.checkpoint: a folder with a file ``.metadata``;
- files of ``torch.save``, read with ``weights_only=True``.
"""

import io
import json
import pickletools
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from switch_ema._checks import listed, printable
from switch_ema.averaging._torch import pickle_in
from switch_ema.averaging.distributed.fsdp import is_sharded
from switch_ema.averaging.offline.confined import FileSection, locate, require_regular
from switch_ema.averaging.offline.metadata import (
    Chunk,
    Contents,
    Place,
    Refused,
    covers,
    read_metadata,
)
from switch_ema.averaging.offline.streams import (
    BLOCK,
    Header,
    Part,
    TensorInfo,
    can_be_stored,
    read_header,
)

INDEX = ".safetensors.index.json"
"""Suffix of the index file of shards."""

_DEEPEST = 100
"""Maximum nesting depth of dictionaries and tuples."""
_MOST_OFTEN = 100
"""Maximum number of places at which the same one may occur."""
_MOST_INFLATED = 100
"""How often stored numbers may be repeated (tied or expanded tensors)."""


class Checkpoint(ABC):
    """A checkpoint: its tensors by name, read in blocks."""

    def __init__(self, path: Path, tensors: dict[str, TensorInfo]) -> None:
        for name in tensors:
            if not _is_text(name):
                raise ValueError(
                    f"{path} has a tensor whose name is not valid text: {name!r}."
                )
        self.path = path
        self.tensors = tensors
        """Dtype and shape of each tensor, by its name in the file."""

    has_parts: ClassVar[bool] = False
    """Whether a part of a tensor can be read without the rest of it."""

    @abstractmethod
    def blocks(self, part: Part) -> Iterator[Tensor]:
        """Read a part of a tensor as flat blocks of at most ``BLOCK`` elements."""

    def files(self) -> dict[str, list[str]]:
        """Return the tensors of each file, to shard the result alike."""
        return {"model.safetensors": list(self.tensors)}

    def select(self, key: str) -> dict[str, str]:
        """Map the names below ``key`` to the names in the file.

        Raises:
            ValueError: there are no tensors below ``key``.
        """
        prefix = f"{key}." if key else ""
        found = {n[len(prefix) :]: n for n in self.tensors if n.startswith(prefix)}
        if not self.tensors:
            raise ValueError(f"{self.path} has no tensors.")
        if not found:
            parts = sorted({name.split(".")[0] for name in self.tensors})
            raise ValueError(
                f"{self.path} has no tensors below {key!r}; it has {listed(parts)}."
            )
        return found


def open_checkpoint(path: str | Path, key: str | None = "") -> Checkpoint:
    """Open a checkpoint without reading its tensors.

    Args:
        path: a file or a folder; the format is detected from its content.
        key: the part to read, such as ``model``; only its values must be tensors. None:
            whatever is a tensor.

    Raises:
        ValueError: the format is unknown, or the checkpoint is damaged.
    """
    path = Path(path)
    if path.is_dir():
        return _open_folder(path, key)
    require_regular(path)
    if path.name.endswith(INDEX):
        return Safetensors(path, _read_index(path))
    with open(path, "rb") as file:
        start = file.read(9)
    if start[:4] == b"PK\x03\x04":
        return _TorchFile(path, key)
    if start[8:] == b"{" or path.suffix == ".safetensors":
        return Safetensors(path, read_header(path))
    raise ValueError(
        f"{path} is neither a safetensors file nor a zip file of torch.save; other "
        "pickles are not read, because they can run code."
    )


def _open_folder(path: Path, key: str | None) -> Checkpoint:
    if (path / ".metadata").is_file():
        return _Distributed(path, key)
    indices = sorted(path.glob(f"*{INDEX}"))
    files = sorted(path.glob("*.safetensors"))
    if len(indices) == 1:
        return Safetensors(path, _read_index(locate(path, indices[0].name)))
    if len(files) == 1 and not indices:
        file = locate(path, files[0].name)
        return Safetensors(path, read_header(file))
    raise ValueError(
        f"{path} is not a checkpoint: it has {len(files)} safetensors files, "
        f"{len(indices)} shard indices and no .metadata; pass one file, shards with "
        "one index, or a folder of torch.distributed.checkpoint."
    )


class Safetensors(Checkpoint):
    """safetensors: a file, or shards with an index."""

    has_parts = True

    def __init__(self, path: Path, header: Header) -> None:
        stored, self.texts = header
        super().__init__(path, {name: tensor.info for name, tensor in stored.items()})
        self.stored = stored

    def blocks(self, part: Part) -> Iterator[Tensor]:
        """Read a part of a tensor."""
        return self.stored[part.name].blocks(part.first, part.elements)

    def files(self) -> dict[str, list[str]]:
        """Return the tensors of each shard."""
        result: dict[str, list[str]] = {}
        for name, tensor in self.stored.items():
            result.setdefault(tensor.path.name, []).append(name)
        return result


def _read_index(path: Path) -> Header:
    """Join the headers of the shards; the texts are those of the first that has any."""
    try:
        places: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))[
            "weight_map"
        ]
        files = sorted(set(places.values()))
        is_index = all(
            Path(file).name == file and file.endswith(".safetensors") for file in files
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        is_index = False
    if not is_index:
        raise ValueError(f"{path} is not an index of safetensors shards.")
    shards = {file: read_header(locate(path.parent, file)) for file in files}
    lacking = [n for n, file in places.items() if n not in shards[file].tensors]
    if lacking:
        raise ValueError(f"The shards of {path} lack {listed(lacking)}.")
    stored = {name: shards[file].tensors[name] for name, file in places.items()}
    texts = next((header.texts for header in shards.values() if header.texts), {})
    return Header(stored, texts)


class _TorchFile(Checkpoint):
    def __init__(self, path: Path, key: str | None) -> None:
        content = load_plain(str(path), path, mmap=True)
        self._values = _by_name(path, content, key)
        _refuse_others(
            path,
            key,
            [n for n, value in self._values.items() if not _is_dense(value)],
        )
        tensors = {
            name: TensorInfo(value.dtype, tuple(value.shape))
            for name, value in self._values.items()
            if _is_dense(value)
        }
        _refuse_inflated(path, key, tensors)
        super().__init__(path, tensors)

    def blocks(self, part: Part) -> Iterator[Tensor]:
        return _divide(self._values[part.name], part)


def _divide(tensor: Tensor, part: Part) -> Iterator[Tensor]:
    flat = tensor.detach().reshape(-1)[part.first : part.first + part.elements]
    return (flat[first : first + BLOCK] for first in range(0, part.elements, BLOCK))


def _by_name(path: Path, content: Any, key: str | None) -> dict[str, Any]:
    """Flatten a nested dictionary to dotted names."""
    result: dict[str, Any] = {}
    try:
        for name, value in _flatten(content, "", Counter()):
            if name in result and _is_below(key, name):
                raise ValueError(
                    f"two values are named {printable(name)}: a dictionary is nested, "
                    "and another one has names with dots"
                )
            result[name] = value
    except ValueError as error:
        raise ValueError(f"{path} cannot be merged: {error}.") from error
    return result


def _flatten(
    values: Any, prefix: str, met: Counter[int], depth: int = 0
) -> Iterator[tuple[str, Any]]:
    if not isinstance(values, Mapping):
        return
    met[id(values)] += 1
    if depth > _DEEPEST or met[id(values)] > _MOST_OFTEN:
        raise ValueError("its dictionaries are nested too deeply")
    # From the type: attributes of the instance come from the file.
    for key, value in type(values).items(values):
        name = f"{prefix}{key if isinstance(key, (str, int)) else type(key).__name__}"
        if isinstance(value, Mapping) and value and isinstance(key, (str, int)):
            yield from _flatten(value, f"{name}.", met, depth + 1)
        else:
            yield name, value


def _refuse_inflated(
    path: Path, key: str | None, tensors: Mapping[str, TensorInfo]
) -> None:
    """Refuse a small file that would fill the disk: few numbers, repeated often."""
    size = sum(info.bytes for name, info in tensors.items() if _is_below(key, name))
    stored = path.stat().st_size
    if size > _MOST_INFLATED * stored:
        raise ValueError(
            f"The tensors of {path} take {size} bytes, but the file has {stored}; "
            "write it with contiguous tensors."
        )


def _is_dense(value: Any) -> bool:
    return (
        isinstance(value, Tensor)
        and not is_sharded(value)
        and value.layout == torch.strided
        and not value.is_quantized
        and value.device.type == "cpu"
        and can_be_stored(value.dtype)
    )


class _Distributed(Checkpoint):
    def __init__(self, path: Path, key: str | None) -> None:
        contents = _read_metadata(path)
        stored = contents.tensors
        tensors = {n: info for n, info in stored.items() if can_be_stored(info.dtype)}
        unusable = [name for name in stored if name not in tensors]
        _refuse_others(path, key, contents.others + unusable)
        _refuse_truncated(path, contents.places)
        self._chunks = contents.chunks
        for name in tensors:
            if _is_below(key, name):
                _check_chunks(path, name, tensors[name], self._chunks[name])
        super().__init__(path, tensors)

    def blocks(self, part: Part) -> Iterator[Tensor]:
        # The shards are in several files, so the tensor is assembled in memory.
        info, chunks = self.tensors[part.name], self._chunks[part.name]
        if len(chunks) == 1:
            whole = _read_chunk(self.path, info.dtype, chunks[0])
        else:
            whole = torch.empty(info.shape, dtype=info.dtype)
            for chunk in chunks:
                box = tuple(map(_slice, chunk.offsets, chunk.sizes))
                whole[box] = _read_chunk(self.path, info.dtype, chunk)
        yield from _divide(whole, part)


def _slice(first: int, count: int) -> slice:
    return slice(first, first + count)


def _read_metadata(path: Path) -> Contents:
    with open(locate(path, ".metadata"), "rb") as file:
        try:
            return read_metadata(file)
        except Refused as error:
            raise ValueError(
                f"{path / '.metadata'} is not from torch.distributed.checkpoint: "
                f"{printable(str(error))}."
            ) from error


def _refuse_truncated(path: Path, places: Iterable[Place]) -> None:
    """Compare the sizes of the files with the metadata."""
    sizes: dict[str, int] = {}
    used: Counter[str] = Counter()
    for place in places:
        if place.file not in sizes:
            sizes[place.file] = locate(path, place.file).stat().st_size
        if place.offset + place.length > sizes[place.file]:
            raise ValueError(
                f"{path / place.file} is truncated: {printable(place.name)} is not in "
                "it."
            )
        used[place.file] += place.length
        if used[place.file] > sizes[place.file]:
            raise ValueError(f"{path / place.file} is shorter than the metadata says.")


def _check_chunks(
    path: Path, name: str, info: TensorInfo, chunks: Sequence[Chunk]
) -> None:
    """Refuse a tensor whose chunks do not cover it."""
    name = printable(name)
    if not covers(info.shape, chunks):
        raise ValueError(
            f"The chunks of {name} in {path} do not cover each of its elements once."
        )
    for chunk in chunks:
        if not chunk.place.is_plain:
            raise ValueError(
                f"{name} in {path} is compressed or otherwise transformed; write the "
                "checkpoint without extensions."
            )
        size = TensorInfo(info.dtype, chunk.sizes).bytes
        if size > chunk.place.length:
            raise ValueError(
                f"{name} in {path} has {size} bytes, but only "
                f"{chunk.place.length} are stored."
            )


def _read_chunk(path: Path, dtype: torch.dtype, chunk: Chunk) -> Tensor:
    _, file, offset, length, _ = chunk.place
    with open(path / file, "rb") as whole:
        value = load_plain(
            io.BufferedReader(FileSection(whole, offset, length)),
            f"{printable(chunk.place.name)} in {path / file}",
        )
    if not (_is_dense(value) and value.dtype == dtype and value.shape == chunk.sizes):
        raise ValueError(
            f"{printable(chunk.place.name)} in {path / file} does not match its "
            "description in the metadata."
        )
    return value  # type: ignore[no-any-return]


def load_plain(file: Any, shown: object, **options: Any) -> Any:
    """Read a ``torch.save`` file that may hold tensors and plain values only."""
    try:
        # Python hashes nested tuples recursively in C, without a depth limit: a hostile
        # file could overflow the stack and end the process.
        if _deepest_tuple(pickle_in(file)) > _DEEPEST:
            raise ValueError("its tuples are nested too deeply")
        if hasattr(file, "seek"):
            file.seek(0)
        return torch.load(file, "cpu", weights_only=True, **options)
    except OSError:
        raise
    except Exception as error:  # many types, for damage and for pickled objects
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        raise ValueError(
            f"{shown} is not a whole file that torch.load reads with "
            f"weights_only=True: {printable(reason)}."
        ) from error


def _deepest_tuple(raw: bytes) -> int:
    """Return the largest nesting depth of tuples in a pickle, without unpickling."""
    stack: list[int] = []  # the depth of each value
    marks: list[int] = []
    memo: dict[Any, int] = {}
    deepest = 0
    for opcode, argument, _ in pickletools.genops(raw):
        top = stack[-1] if stack else 0
        if opcode.name == "MARK":
            marks.append(len(stack))
        elif opcode.name.endswith("PUT"):
            memo[argument] = top
        elif opcode.name == "MEMOIZE":
            memo[len(memo)] = top
        elif opcode.name.endswith("GET"):
            stack.append(memo.get(argument, 0))
        else:
            taken = opcode.stack_before
            if pickletools.markobject in taken:
                first = marks.pop() - taken.index(pickletools.markobject)
            else:
                first = len(stack) - len(taken)
            depth = max(stack[max(0, first) :], default=0)
            depth += opcode.name.startswith("TUPLE")
            stack[max(0, first) :] = [depth] * len(opcode.stack_after)
            deepest = max(deepest, depth)
    return deepest


def _is_below(key: str | None, name: str) -> bool:
    return not key or name.startswith(f"{key}.")


def _is_text(name: str) -> bool:
    """Whether a name can be encoded: a lone surrogate cannot."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _refuse_others(path: Path, key: str | None, names: list[str]) -> None:
    """Refuse values below ``key`` that can be neither averaged nor copied."""
    if key is None:
        return
    inside = [name for name in names if _is_below(key, name)]
    if inside:
        hint = "" if key else "; name the part to merge with key, such as model"
        raise ValueError(
            f"{path} has values that are not dense tensors: {listed(inside)}{hint}."
        )
