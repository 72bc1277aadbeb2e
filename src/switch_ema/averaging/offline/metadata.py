"""Reads the metadata of torch.distributed.checkpoint without unpickling it.

The metadata is a pickle, and unpickling can run code. This reader imports nothing,
calls nothing and creates only the objects below. It knows the instructions that Python
writes for torch's records and the exact names of their classes; it rejects everything
else.
"""

import io
import itertools
import pickletools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

import torch

from switch_ema.averaging.offline.streams import TensorInfo

_METADATA = "torch.distributed.checkpoint.metadata"
_RECORDS = {
    (_METADATA, "BytesStorageMetadata"),
    (_METADATA, "ChunkStorageMetadata"),
    (_METADATA, "Metadata"),
    (_METADATA, "MetadataIndex"),
    (_METADATA, "StorageMeta"),
    (_METADATA, "TensorProperties"),
    (_METADATA, "TensorStorageMetadata"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
}
"""Classes of which a pickle may create instances and set their state."""

_MEMORY_FORMAT = (_METADATA, "_MEM_FORMAT_ENCODING")
_MEMORY_FORMATS = {
    "TORCH_CONTIGUOUS_FORMAT": 0,
    "TORCH_CHANNELS_LAST": 1,
    "TORCH_PRESERVE_FORMAT": 2,
}
_LAYOUT = ("torch.serialization", "_get_layout")
_SIZE = ("torch", "Size")
_GETATTR = {("builtins", "getattr"), ("__builtin__", "getattr")}
"""Python 3.11.0 to 3.11.3 pickle enums by ``getattr``; accepted only for these."""
_PATHS = {
    (module, name)
    for module in ("pathlib", "pathlib._local")  # the latter since Python 3.13
    for name in ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath")
}
_DTYPES = {
    ("torch", name): value
    for name, value in vars(torch).items()
    if isinstance(value, torch.dtype)
}
_KNOWN = {*_RECORDS, *_PATHS, *_DTYPES, *_GETATTR, _MEMORY_FORMAT, _LAYOUT, _SIZE}

_MOST_OFTEN = 100
_MOST_DIVIDED = 6
"""Most dimensions in which a tensor may be divided; device meshes have fewer."""


class Refused(ValueError):
    """Raised for metadata that torch would not write."""


class Place(NamedTuple):
    """Location of the bytes of a chunk or of another value."""

    name: str
    """Name of the value."""
    file: str
    offset: int
    length: int
    is_plain: bool
    """Whether the bytes are as torch.save wrote them, not compressed, say."""


class Chunk(NamedTuple):
    """A box-shaped part of a tensor, stored in one piece."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    place: Place


class Contents(NamedTuple):
    """Contents of a torch.distributed.checkpoint folder."""

    tensors: dict[str, TensorInfo]
    chunks: dict[str, list[Chunk]]
    """Chunks of each tensor."""
    others: list[str]
    """Names of values that are not tensors."""
    places: list[Place]
    """Locations of all stored values."""


def read_metadata(file: BinaryIO) -> Contents:
    """Read a ``.metadata`` file.

    Raises:
        Refused: the file is damaged, or contains something that torch does not write.
    """
    # From memory: reading from a file would allocate as many bytes as a string claims.
    root = _Record.expect(_unpickle(io.BytesIO(file.read())), "Metadata")
    stored = _expect(root.get("storage_data"), dict, "storage_data")
    places = {index: _place(index, value) for index, value in stored.items()}
    tensors, chunks, others, count = {}, {}, [], 0
    entries = _expect(root.get("state_dict_metadata"), dict, "state_dict_metadata")
    for name, entry in entries.items():
        _expect(name, str, "a name")
        if isinstance(entry, _Record) and entry.kind == "BytesStorageMetadata":
            others.append(name)
            continue
        record = _Record.expect(entry, "TensorStorageMetadata")
        shape = _as_size(record.get("size"))
        boxes = _expect(record.get("chunks"), list, "chunks")
        # A small file may refer to one long list many times. Not every chunk has a
        # location of its own: empty ones share theirs.
        count += len(boxes)
        if count > _MOST_OFTEN * (len(places) + 1):
            raise Refused("it has far more chunks than are stored")
        properties = _Record.expect(record.get("properties"), "TensorProperties")
        dtype = _DTYPES.get(properties.state[0].key)
        if dtype is None:
            raise Refused(f"the dtype of {name!r} is unknown")
        tensors[name] = TensorInfo(dtype, shape)
        chunks[name] = [_chunk(name, shape, box, places) for box in boxes]
    return Contents(tensors, chunks, others, list(places.values()))


def covers(shape: tuple[int, ...], chunks: Sequence[Chunk]) -> bool:
    """Whether each element of a tensor is in exactly one of its chunks.

    A box is determined by its corners with alternating signs. If boxes fill a larger
    one without overlap, all corners cancel except those of the larger one. This takes
    linear time; comparing all pairs of chunks would take quadratic time.
    """
    if 0 in shape:
        return True
    divided = [
        d
        for d, size in enumerate(shape)
        if any(chunk.sizes[d] != size for chunk in chunks)
    ]
    if len(divided) > _MOST_DIVIDED:
        return False
    corners: Counter[tuple[int, ...]] = Counter()
    whole = ((0,) * len(shape), shape)
    boxes = [(chunk.offsets, chunk.sizes) for chunk in chunks]
    for sign, (offsets, sizes) in ((-1, whole), *((1, box) for box in boxes)):
        edges = [((offsets[d], 1), (offsets[d] + sizes[d], -1)) for d in divided]
        for corner in itertools.product(*edges):
            signs = [sign, *(factor for _, factor in corner)]
            point = tuple(position for position, _ in corner)
            corners[point] += -1 if signs.count(-1) % 2 else 1
    return not any(corners.values())


def _chunk(
    name: str, shape: tuple[int, ...], box: Any, places: Mapping[Any, Place]
) -> Chunk:
    record = _Record.expect(box, "ChunkStorageMetadata")
    offsets, sizes = _as_size(record.get("offsets")), _as_size(record.get("sizes"))
    is_inside = len(offsets) == len(sizes) == len(shape) and all(
        offset + size <= most
        for offset, size, most in zip(offsets, sizes, shape, strict=True)
    )
    place = places.get((name, offsets))
    if not is_inside or place is None:
        raise Refused(f"a chunk of {name!r} is outside the tensor, or not stored")
    return Chunk(offsets, sizes, place)


def _place(index: Any, value: Any) -> Place:
    if not isinstance(index, tuple):
        raise Refused("storage_data has a key that is not an index")
    record = _Record.expect(value, "_StorageInfo")
    file = _expect(record.get("relative_path"), str, "relative_path")
    offset, length = _as_size((record.get("offset"), record.get("length")))
    is_plain = not record.state.get("transform_descriptors")
    return Place(index[0], file, offset, length, is_plain)


def _expect(value: Any, kind: type, name: str) -> Any:
    if type(value) is not kind:
        raise Refused(f"{name} is not of type {kind.__name__}")
    return value


def _as_size(value: Any) -> tuple[int, ...]:
    """Check that a value is a tuple of plausible sizes."""
    numbers = _expect(value, tuple, "a size")
    if not all(type(number) is int and 0 <= number < 1 << 62 for number in numbers):
        raise Refused("a size does not consist of whole numbers")
    return tuple(numbers)


class _Named:
    """A class or function named by the pickle; it is never imported."""

    __slots__ = ("key",)

    def __init__(self, key: Any) -> None:
        self.key = key


class _Record:
    """Stands for an instance of one of torch's classes: the name and the state."""

    __slots__ = ("kind", "state")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.state: Any = None

    def build(self, state: Any) -> None:
        """Set the state, which is allowed only once."""
        if self.state is not None:
            raise Refused(f"it sets the state of a {self.kind} twice")
        if self.kind == "TensorProperties":
            is_state = (
                isinstance(state, tuple)
                and len(state) in (5, 6)  # 6 with the strides of newer torch versions
                and isinstance(state[0], _Named)
            )
        else:
            is_state = isinstance(state, dict)
        if not is_state:
            raise Refused(f"the state of a {self.kind} is invalid")
        self.state = state

    def get(self, name: str) -> Any:
        """Return an attribute, or raise Refused."""
        if name not in self.state:
            raise Refused(f"a {self.kind} has no {name}")
        return self.state[name]

    @staticmethod
    def expect(value: Any, kind: str) -> "_Record":
        """Return the value if it is a record of this kind, or raise Refused."""
        if not isinstance(value, _Record) or value.kind != kind or value.state is None:
            raise Refused(f"it has no {kind} where one is expected")
        return value


def _call(function: Any, arguments: Any) -> Any:
    """Return the data that a call stands for, without making the call."""
    key = function.key if isinstance(function, _Named) else None
    if key == _SIZE and len(arguments) == 1:
        return _as_size(arguments[0])
    first = arguments[0] if arguments else None
    if key in _PATHS and all(type(part) is str for part in arguments):
        return "/".join(arguments)
    if key == _LAYOUT and len(arguments) == 1 and type(first) is str:
        return first
    if key == _MEMORY_FORMAT and len(arguments) == 1 and type(first) is int:
        return first
    if (
        key in _GETATTR
        and len(arguments) == 2
        and isinstance(first, _Named)
        and first.key == _MEMORY_FORMAT
        and type(arguments[1]) is str
        and arguments[1] in _MEMORY_FORMATS
    ):
        return _MEMORY_FORMATS[arguments[1]]
    raise Refused("it would call " + (".".join(key) if key else "a value"))


class _Machine:
    """Executes those instructions of a pickle that only create data, on a stack."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self._below: list[list[Any]] = []
        self._memo: dict[int, Any] = {}
        self.does: dict[str, Callable[[Any], object]] = {
            **dict.fromkeys(("PROTO", "FRAME"), lambda _: None),
            **dict.fromkeys(
                (
                    *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"),
                    *("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
                ),
                self.push,
            ),
            "NONE": lambda _: self.push(None),
            "NEWTRUE": lambda _: self.push(True),
            "NEWFALSE": lambda _: self.push(False),
            "EMPTY_TUPLE": lambda _: self.push(()),
            "EMPTY_LIST": lambda _: self.push([]),
            "EMPTY_DICT": lambda _: self.push({}),
            "TUPLE1": lambda _: self._tuple(1),
            "TUPLE2": lambda _: self._tuple(2),
            "TUPLE3": lambda _: self._tuple(3),
            "MARK": self._mark,
            "TUPLE": lambda _: self.push(tuple(self._marked())),
            "APPEND": lambda _: self._extend([self.stack.pop()]),
            "APPENDS": lambda _: self._extend(self._marked()),
            "SETITEM": lambda _: self._update([self.stack.pop(-2), self.stack.pop()]),
            "SETITEMS": lambda _: self._update(self._marked()),
            "MEMOIZE": lambda _: self._put(len(self._memo)),
            "BINPUT": self._put,
            "LONG_BINPUT": self._put,
            "BINGET": self._get,
            "LONG_BINGET": self._get,
            "GLOBAL": lambda names: self._name(*names.split(" ", 1)),
            "STACK_GLOBAL": lambda _: self._name(self.stack.pop(-2), self.stack.pop()),
            "REDUCE": lambda _: self._reduce(),
            "NEWOBJ": lambda _: self._new(),
            "BUILD": lambda _: self._build(),
        }

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def _mark(self, _: Any) -> None:
        self._below.append(self.stack)
        self.stack = []

    def _marked(self) -> list[Any]:
        values, self.stack = self.stack, self._below.pop()
        return values

    def _tuple(self, count: int) -> None:
        if len(self.stack) < count:
            raise Refused("it takes more values than are on the stack")
        self.stack[-count:] = [tuple(self.stack[-count:])]

    def _extend(self, values: list[Any]) -> None:
        _expect(self.stack[-1], list, "a list").extend(values)

    def _update(self, values: list[Any]) -> None:
        changed = _expect(self.stack[-1], dict, "a dictionary")
        for key, value in zip(values[::2], values[1::2], strict=True):
            if isinstance(key, _Record):
                record = _Record.expect(key, "MetadataIndex")
                offset = record.state.get("offset")
                name = _expect(record.get("fqn"), str, "a name")
                key = (name, None if offset is None else _as_size(offset))
            elif type(key) not in (str, int):  # hashing a nested key may take forever
                raise Refused("a dictionary has a key that is not a name")
            changed[key] = value

    def _put(self, number: int) -> None:
        self._memo[number] = self.stack[-1]

    def _get(self, number: int) -> None:
        self.push(self._memo[number])

    def _name(self, module: Any, name: Any) -> None:
        if type(module) is not str or type(name) is not str:
            raise Refused("it would import something without a name")
        if (module, name) not in _KNOWN:
            raise Refused(f"it would import {module}.{name}")
        self.push(_Named((module, name)))

    def _reduce(self) -> None:
        arguments = _expect(self.stack.pop(), tuple, "an argument list")
        self.push(_call(self.stack.pop(), arguments))

    def _new(self) -> None:
        arguments, made = self.stack.pop(), self.stack.pop()
        if not isinstance(made, _Named) or made.key not in _RECORDS or arguments != ():
            raise Refused("it would create something that is not a record")
        self.push(_Record(made.key[1]))

    def _build(self) -> None:
        state, record = self.stack.pop(), self.stack[-1]
        if not isinstance(record, _Record):
            raise Refused("it would change something that is not a record")
        record.build(state)


def _unpickle(file: BinaryIO) -> Any:
    machine = _Machine()
    does = machine.does
    try:
        for opcode, argument, _ in pickletools.genops(file):
            if opcode.name == "STOP":
                break
            if opcode.name not in does:
                raise Refused(f"it has the instruction {opcode.name}")
            does[opcode.name](argument)
        return machine.stack.pop()
    except (IndexError, KeyError) as error:
        raise Refused("it uses a value that it never created") from error
    except ValueError as error:
        if isinstance(error, Refused):
            raise
        raise Refused(str(error).partition("\n")[0]) from error
