"""Checkpoints on disk whose tensors are read one at a time, in three formats.

- safetensors: a file, or a folder with shards and their index;
- torch.distributed.checkpoint: a folder with a file ``.metadata``;
- files of ``torch.save``, read with ``weights_only=True``.
"""

import json
import pickle
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from switch_ema._checks import listed
from switch_ema.averaging.distributed.fsdp import is_sharded
from switch_ema.averaging.offline.streams import (
    BLOCK,
    Part,
    StoredTensor,
    TensorInfo,
    can_be_stored,
    read_header,
)

INDEX = ".safetensors.index.json"
"""How the name of an index of shards ends."""

USER = "Merging checkpoints"


class Checkpoint(ABC):
    """A checkpoint: what tensors it has, and their values block by block."""

    def __init__(self, path: Path, tensors: dict[str, TensorInfo]) -> None:
        self.path = path
        self.tensors = tensors
        """Dtype and shape of each tensor, by the name that it has in the file."""

    has_parts: ClassVar[bool] = False
    """Whether a part of a tensor can be read without the rest of it."""

    @abstractmethod
    def blocks(self, part: Part) -> Iterator[Tensor]:
        """Read a part of a tensor as flat blocks of at most ``BLOCK`` elements."""

    def files(self) -> dict[str, list[str]]:
        """Return which tensors are in which file, for a result that is cut alike."""
        return {"model.safetensors": list(self.tensors)}

    def select(self, key: str) -> dict[str, str]:
        """Return the names in the file by the names below ``key``.

        Raises:
            ValueError: there is nothing below it.
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


def open_checkpoint(path: str | Path, key: str = "") -> Checkpoint:
    """Look at a checkpoint without reading its tensors.

    Args:
        path: a file or a folder; the format is told from its content.
        key: the part that is wanted, such as ``model``; only its values have to be
            tensors.

    Raises:
        ValueError: the format is unknown, or the checkpoint is damaged.
    """
    path = Path(path)
    if path.is_dir():
        return _open_folder(path, key)
    if path.name.endswith(INDEX):
        return _Safetensors(path, _read_index(path))
    with open(path, "rb") as file:
        start = file.read(9)
    if start[:4] == b"PK\x03\x04":
        return _TorchFile(path, key)
    if start[8:] == b"{" or path.suffix == ".safetensors":
        return _Safetensors(path, read_header(path, USER))
    raise ValueError(
        f"{path} is neither a safetensors file nor a zip file of torch.save; other "
        "pickles are not read, because they can run code."
    )


def _open_folder(path: Path, key: str) -> Checkpoint:
    if (path / ".metadata").is_file():
        return _Distributed(path, key)
    indices = sorted(path.glob(f"*{INDEX}"))
    files = sorted(path.glob("*.safetensors"))
    if len(indices) == 1:
        return _Safetensors(path, _read_index(indices[0]))
    if len(files) == 1 and not indices:
        return _Safetensors(path, read_header(files[0], USER))
    raise ValueError(
        f"{path} has {len(files)} safetensors files, {len(indices)} indices of shards "
        "and no .metadata; a checkpoint is one file, shards with one index, or a "
        "folder of torch.distributed.checkpoint."
    )


class _Safetensors(Checkpoint):
    has_parts = True

    def __init__(self, path: Path, stored: dict[str, StoredTensor]) -> None:
        super().__init__(path, {name: tensor.info for name, tensor in stored.items()})
        self._stored = stored

    def blocks(self, part: Part) -> Iterator[Tensor]:
        return self._stored[part.name].blocks(part.first, part.elements)

    def files(self) -> dict[str, list[str]]:
        result: dict[str, list[str]] = {}
        for name, tensor in self._stored.items():
            result.setdefault(tensor.path.name, []).append(name)
        return result


def _read_index(path: Path) -> dict[str, StoredTensor]:
    try:
        places: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))[
            "weight_map"
        ]
        files = sorted(set(places.values()))
        is_index = all(Path(file).name == file for file in files)
    except (ValueError, KeyError, TypeError, AttributeError):
        is_index = False
    if not is_index:
        raise ValueError(f"{path} is not an index of safetensors shards.")
    shards = {file: read_header(path.parent / file, USER) for file in files}
    missing = [name for name, file in places.items() if name not in shards[file]]
    if missing:
        raise ValueError(f"The shards of {path} lack {listed(missing)}.")
    return {name: shards[file][name] for name, file in places.items()}


class _TorchFile(Checkpoint):
    def __init__(self, path: Path, key: str) -> None:
        try:
            content = torch.load(path, "cpu", weights_only=True, mmap=True)
        except OSError:
            raise
        except Exception as error:  # of many kinds, for damage as for pickled objects
            reason = str(error).strip().partition("\n")[0].rstrip(".")
            raise ValueError(
                f"{path} is not a whole file that torch.load reads with "
                f"weights_only=True: {reason}."
            ) from error
        self._values = dict(_flatten(content)) if isinstance(content, Mapping) else {}
        _refuse_others(
            path,
            key,
            [n for n, value in self._values.items() if not _is_dense(value)],
        )
        super().__init__(
            path,
            {
                name: TensorInfo(value.dtype, tuple(value.shape))
                for name, value in self._values.items()
                if _is_dense(value)
            },
        )

    def blocks(self, part: Part) -> Iterator[Tensor]:
        return _divide(self._values[part.name], part)


def _divide(tensor: Tensor, part: Part) -> Iterator[Tensor]:
    flat = tensor.detach().reshape(-1)[part.first : part.first + part.elements]
    return (flat[first : first + BLOCK] for first in range(0, part.elements, BLOCK))


def _flatten(values: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _is_dense(value: Any) -> bool:
    return (
        isinstance(value, Tensor)
        and not is_sharded(value)
        and value.layout == torch.strided
        and not value.is_quantized
        and can_be_stored(value.dtype)
    )


class _Distributed(Checkpoint):
    def __init__(self, path: Path, key: str) -> None:
        from torch.distributed.checkpoint.metadata import TensorStorageMetadata

        self._reader = _make_reader(path)
        metadata = self._reader.read_metadata()
        stored = metadata.state_dict_metadata
        others = [
            n for n, v in stored.items() if not isinstance(v, TensorStorageMetadata)
        ]
        _refuse_others(path, key, others)
        _refuse_truncated(path, metadata.storage_data)
        super().__init__(
            path,
            {
                name: TensorInfo(entry.properties.dtype, tuple(entry.size))
                for name, entry in stored.items()
                if isinstance(entry, TensorStorageMetadata)
            },
        )

    def blocks(self, part: Part) -> Iterator[Tensor]:
        from torch.distributed.checkpoint.state_dict_loader import load

        info = self.tensors[part.name]
        # Its shards are in several files; they are put together in memory.
        whole = {part.name: torch.empty(info.shape, dtype=info.dtype)}
        with warnings.catch_warnings():
            # It says that torch.distributed is not initialised, which is not needed.
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            load(whole, storage_reader=self._reader, no_dist=True)
        yield from _divide(whole[part.name], part)


def _make_reader(path: Path) -> Any:
    """Return a reader whose metadata, a pickle, can make torch's records alone."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import StorageMeta

    class Reader(FileSystemReader):
        def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
            try:
                with open(path / ".metadata", "rb") as file:
                    metadata = _RecordsOnly(file).load()
            except OSError:
                raise
            except Exception as error:  # a damaged pickle raises anything
                raise ValueError(
                    f"{path / '.metadata'} is not of torch.distributed.checkpoint: "
                    f"{error}."
                ) from error
            if getattr(metadata, "storage_meta", None) is None:
                metadata.storage_meta = StorageMeta()
            metadata.storage_meta.load_id = self.load_id
            return metadata

    return Reader(path)


class _RecordsOnly(pickle.Unpickler):
    """Unpickles the records of torch.distributed.checkpoint and nothing that acts."""

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        is_record = (
            module.startswith("torch.distributed.checkpoint.")
            and isinstance(found, type)
            and found.__module__ == module
        )
        is_value = module == "torch" and (
            isinstance(found, torch.dtype) or found is torch.Size
        )
        is_path = module == "pathlib" and name in ("PosixPath", "WindowsPath")
        is_layout = (module, name) == ("torch.serialization", "_get_layout")
        if is_record or is_value or is_path or is_layout:
            return found
        raise pickle.UnpicklingError(f"it would import {module}.{name}")


def _refuse_truncated(path: Path, places: Mapping[Any, Any]) -> None:
    """Compare the files with what the metadata says of them."""
    sizes: dict[str, int] = {}
    for index, place in places.items():
        file = path / place.relative_path
        if place.relative_path not in sizes:
            sizes[place.relative_path] = file.stat().st_size
        if place.offset + place.length > sizes[place.relative_path]:
            raise ValueError(f"{file} is truncated: {index.fqn} is not in it.")


def _refuse_others(path: Path, key: str, names: list[str]) -> None:
    """Refuse what cannot be averaged or copied in the part that is wanted."""
    inside = [name for name in names if not key or name.startswith(f"{key}.")]
    if inside:
        hint = "" if key else "; name the part to merge with key, such as model"
        raise ValueError(
            f"{path} has values that are not dense tensors: {listed(inside)}{hint}."
        )
