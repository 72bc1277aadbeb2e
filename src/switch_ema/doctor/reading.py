"""Opens a checkpoint of any library as a tree of names, without running its code.

safetensors files and folders of torch.distributed.checkpoint are read by header. Files
of ``torch.save`` are read with ``weights_only=True``; a class that torch does not allow
there becomes an inert object, which keeps the pickled state but has no
behaviour. Nothing of the file is imported or called, and tensors stay on disk until
their blocks are read.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from switch_ema._checks import printable
from switch_ema.averaging.offline.checkpoints import (
    INDEX,
    Checkpoint,
    Safetensors,
    load_plain,
    open_checkpoint,
)
from switch_ema.averaging.offline.confined import require_regular
from switch_ema.averaging.offline.streams import (
    BLOCK,
    Part,
    StoredTensor,
    TensorInfo,
    read_header,
)

_DEEPEST = 60
"""Maximum nesting depth of a tree."""


class Leaf(Protocol):
    """A tensor in a checkpoint, not yet in memory."""

    @property
    def info(self) -> TensorInfo:
        """Dtype and shape."""

    def blocks(self, first: int, count: int) -> Iterator[Tensor]:
        """Read elements as flat blocks, in order."""


class _LoadedTensor(NamedTuple):
    """A tensor of a torch.save file, mapped into memory."""

    tensor: Tensor

    @property
    def info(self) -> TensorInfo:
        """Dtype and shape."""
        return TensorInfo(self.tensor.dtype, tuple(self.tensor.shape))

    def blocks(self, first: int, count: int) -> Iterator[Tensor]:
        """Return views of the flattened tensor."""
        flat = self.tensor.detach().reshape(-1)[first : first + count]
        return (flat[start : start + BLOCK] for start in range(0, count, BLOCK))


class _ShardedTensor(NamedTuple):
    """A tensor of a torch.distributed.checkpoint folder."""

    checkpoint: Checkpoint
    name: str

    @property
    def info(self) -> TensorInfo:
        """Dtype and shape."""
        return self.checkpoint.tensors[self.name]

    def blocks(self, first: int, count: int) -> Iterator[Tensor]:
        """Read the shards that hold the elements."""
        return self.checkpoint.blocks(Part(self.name, first, count))


def is_leaf(value: object) -> bool:
    """Whether a value of a tree is a tensor."""
    return isinstance(value, (_LoadedTensor, _ShardedTensor, StoredTensor))


def read(leaf: Leaf) -> Tensor:
    """Read a whole tensor; only for small ones, or one at a time."""
    info = leaf.info
    result = torch.empty(info.elements, dtype=info.dtype)
    position = 0
    for block in leaf.blocks(0, info.elements):
        result[position : position + block.numel()] = block
        position += block.numel()
    return result.reshape(info.shape)


def sample(leaf: Leaf, most: int) -> Tensor:
    """Return the first numbers of a tensor, at most ``most``, as float64."""
    blocks = leaf.blocks(0, min(leaf.info.elements, most))
    # Copied, since a block is valid until the next one.
    copies = [block.to(torch.float64, copy=True) for block in blocks]
    return torch.cat(copies) if copies else torch.zeros(0, dtype=torch.float64)


class _Opaque:
    """An object of a class that was not imported: its name and its pickled state."""

    kind = "object"

    def __new__(cls, *args: Any, **kwargs: Any) -> "_Opaque":
        """Accept whatever the class was called with."""
        return object.__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


Tree = Mapping[str, Any]
"""Values by name: leaves, nested trees, lists of these, plain values, opaque objects"""


class ModuleTree(dict[str, Any]):
    """The state dict of a module that was pickled as an object."""


@dataclass(frozen=True)
class Source:
    """An opened checkpoint."""

    path: Path
    storage: str
    """safetensors, torch.save or torch.distributed.checkpoint."""
    tree: Tree
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Header of a safetensors file."""
    opaque: tuple[str, ...] = ()
    """Classes of the file that were not imported."""


def open_source(path: str | Path) -> Source:
    """Open a file, a folder of shards, or a torch.distributed.checkpoint folder.

    Raises:
        ValueError: the format is unknown, or the file is damaged.
        OSError: the file cannot be read.
    """
    path = Path(path)
    if path.is_dir() or path.name.endswith(INDEX):
        return _open_folder(path)
    require_regular(path)
    with open(path, "rb") as file:
        start = file.read(9)
    if start[:4] == b"\x89HDF" or path.suffix == ".keras":
        raise ValueError(
            f"{path} is a Keras file, which stores averages without names; open it "
            "with keras.saving.load_model, call model.optimizer."
            "finalize_variable_values(model.trainable_variables), which gives the "
            "model its average, and save its weights."
        )
    if start[:4] == b"PK\x03\x04":
        return _open_torch(path)
    if start[8:] == b"{" or path.suffix == ".safetensors":
        tensors, texts = read_header(path)
        return Source(path, "safetensors", tensors, texts)
    if start[:1] == b"\x80":
        raise ValueError(
            f"{path} is a pickle, which can run code when it is opened. If you trust "
            "it, load it with the library that wrote it, and save its state dict with "
            "torch.save or safetensors.torch.save_file."
        )
    raise ValueError(
        f"{path} is not a checkpoint: neither a safetensors file nor one of torch.save."
    )


def _open_folder(path: Path) -> Source:
    checkpoint = open_checkpoint(path, key=None)
    if isinstance(checkpoint, Safetensors):
        return Source(path, "safetensors", checkpoint.stored, checkpoint.texts)
    tree = {name: _ShardedTensor(checkpoint, name) for name in checkpoint.tensors}
    return Source(path, "torch.distributed.checkpoint", tree)


def _open_torch(path: Path) -> Source:
    names = _foreign_names(path)
    stubs = [(type("Opaque", (_Opaque,), {"kind": name}), name) for name in names]
    with safe_globals(stubs):  # type: ignore[arg-type]
        content = load_plain(str(path), path, mmap=True)
    tree = _as_tree(content, path)
    if isinstance(tree, list):
        tree = {str(index): value for index, value in enumerate(tree)}
    if not isinstance(tree, dict):
        raise ValueError(f"{path} holds no dictionary and no model.")
    return Source(path, "torch.save", tree, opaque=tuple(names))


def _foreign_names(path: Path) -> list[str]:
    """Return the classes and functions that torch does not allow by itself."""
    try:
        return get_unsafe_globals_in_checkpoint(str(path))
    except Exception as error:  # many types, for damage
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        raise ValueError(
            f"{path} is not a whole file of torch.save: {printable(reason)}."
        ) from error


def _as_tree(value: Any, path: Path, depth: int = 0) -> Any:
    """Turn what torch loaded into trees and leaves."""
    if depth > _DEEPEST:
        raise ValueError(f"{path} is nested too deeply.")
    if isinstance(value, Tensor):
        return _LoadedTensor(value)
    if isinstance(value, Mapping):
        return {
            str(key): _as_tree(item, path, depth + 1)
            # From the type: attributes of the instance come from the file.
            for key, item in type(value).items(value)
        }
    if isinstance(value, (list, tuple)):
        return [_as_tree(item, path, depth + 1) for item in value]
    if isinstance(value, _Opaque) and _is_module(value.state):
        return ModuleTree(_module_tree(value.state, path))
    return value


def _is_module(state: Any) -> bool:
    return isinstance(state, dict) and {"_parameters", "_modules"} <= state.keys()


def _module_tree(
    state: Mapping[str, Any], path: Path, prefix: str = "", depth: int = 0
) -> Iterator[tuple[str, Any]]:
    """Yield what ``state_dict()`` of a pickled module would have."""
    if depth > _DEEPEST:
        raise ValueError(f"{path} is nested too deeply.")
    hidden = state.get("_non_persistent_buffers_set") or ()
    for group in ("_parameters", "_buffers"):
        for name, value in (state.get(group) or {}).items():
            if isinstance(value, Tensor) and name not in hidden:
                yield f"{prefix}{name}", _LoadedTensor(value)
    for name, child in (state.get("_modules") or {}).items():
        if isinstance(child, _Opaque) and _is_module(child.state):
            yield from _module_tree(child.state, path, f"{prefix}{name}.", depth + 1)
