"""Writes one set of weights of a checkpoint as safetensors, block by block."""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from switch_ema._checks import listed, printable
from switch_ema._files import (
    remove_leftovers,
    write_atomically,
    write_folder_atomically,
)
from switch_ema.averaging.offline.confined import copy_file
from switch_ema.averaging.offline.merge import files_beside, write_index
from switch_ema.averaging.offline.provenance import provenance, without_prefix
from switch_ema.averaging.offline.streams import Part, read_header, write_blocks
from switch_ema.doctor.holdings import HeldPart, Holdings, Role
from switch_ema.doctor.naming import name_list
from switch_ema.doctor.reading import Leaf, sample
from switch_ema.doctor.recognise import inspect_checkpoint

_SHARD = 5_000_000_000
"""Default size of a shard in bytes, as Transformers has it."""
_COMPARED = 4096
"""Numbers that tell most tensors apart."""


@dataclass(frozen=True)
class Extracted:
    """What :func:`extract_weights` wrote."""

    path: Path
    tensors: int
    numbers: int
    from_live: tuple[str, ...]
    """Tensors that the average lacks, such as buffers: taken from the live weights."""


def extract_weights(
    checkpoint: str | os.PathLike[str],
    out: str | os.PathLike[str],
    what: Role = "average",
    *,
    where: str | None = None,
    like: str | os.PathLike[str] | None = None,
    shard_bytes: int = _SHARD,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> Extracted:
    """Write the average or the live weights of a checkpoint under plain names.

    Tensors are copied in blocks and compared with the source after writing, so a file
    larger than the memory works. Nothing appears under ``out`` unless all of it could
    be written.

    Args:
        checkpoint: a file or folder that :func:`inspect_checkpoint` recognises.
        out: a file if it ends in ``.safetensors``, otherwise a folder with shards and
            the configuration files that lie beside the source.
        what: ``average``, ``live``, or ``weights`` if the file does not say which.
        where: which part, as ``inspect`` shows it, if there are several.
        like: a checkpoint of the same model, whose names and shapes the result must
            have. It names averages that are stored as a list, and completes those that
            lack buffers.
        shard_bytes: size of a shard in a folder.
        progress: called with the number of bytes written so far, and in total.

    Raises:
        ValueError: the checkpoint has no such part, or it does not fit ``like``.
        FileExistsError: ``out`` already exists.
    """
    out = Path(out)
    if out.exists():
        raise FileExistsError(17, "already exists; choose another name", str(out))
    if not out.absolute().parent.is_dir():
        raise FileNotFoundError(2, "folder does not exist", str(out.parent))
    holdings = inspect_checkpoint(Path(checkpoint))
    part = _choose(holdings, what, where)
    model = _model(holdings, part, like)
    tensors = _named(holdings, part, model)
    from_live = _complete(tensors, model, part)
    facts = {
        **without_prefix(holdings.provenance),
        **part.facts,
        "source": holdings.path.name,
        "library": part.library or None,
    }
    header = provenance(what, {**facts, "weights": what})
    writer = _Writer(tensors, header, progress)
    remove_leftovers(out)
    if out.suffix == ".safetensors":
        write_atomically(out, partial(writer.write, names=list(tensors)))
    else:
        beside = list(files_beside(holdings.path))
        write_folder_atomically(
            out, lambda folder: writer.fill(folder, shard_bytes, beside)
        )
    numbers = sum(leaf.info.elements for leaf in tensors.values())
    return Extracted(out, len(tensors), numbers, tuple(from_live))


def _choose(holdings: Holdings, what: Role, where: str | None) -> HeldPart:
    found = [part for part in holdings.of(what) if where is None or part.where == where]
    if len(found) == 1:
        return found[0]
    if found:
        places = ", ".join(repr(part.where) for part in found)
        raise ValueError(
            f"{holdings.path} has {len(found)} parts with the role {what}: {places}; "
            "name one with where (--where)."
        )
    held = [f"{part.role} ({part.where or 'top level'})" for part in holdings.parts]
    wanted = f"{what} {where!r}" if where else what
    has = listed(held) if held else "no weights"
    label = wanted.replace("live", "live weights", 1)
    raise ValueError(f"{holdings.path} has no {label}; it has {has}.")


def _model(
    holdings: Holdings, part: HeldPart, like: str | os.PathLike[str] | None
) -> Mapping[str, Leaf] | None:
    """Return the tensors whose names the result should have, if they are known."""
    if like is None:
        live = [] if part.role == "live" else holdings.of("live")
        return live[0].tensors if len(live) == 1 and live[0].is_named else None
    other = inspect_checkpoint(Path(like))
    for role in ("live", "weights", "average"):
        named = [each for each in other.of(role) if each.is_named]
        if named:
            return named[0].tensors
    raise ValueError(f"{like} has no weights with names.")


def _named(
    holdings: Holdings, part: HeldPart, model: Mapping[str, Leaf] | None
) -> dict[str, Leaf]:
    if part.is_named:
        return dict(part.tensors)
    if model is None:
        raise ValueError(
            f"{holdings.path} stores the {part.role} as a list without names; give a "
            "checkpoint of the same model with like (--like MODEL.safetensors)."
        )
    return name_list(list(part.tensors.values()), model)


def _complete(
    tensors: dict[str, Leaf], model: Mapping[str, Leaf] | None, part: HeldPart
) -> list[str]:
    """Add what an average lacks, such as buffers, and compare the shapes."""
    if model is None:
        return []
    unknown = [name for name in tensors if name not in model]
    if unknown and len(unknown) == len(tensors):
        raise ValueError(
            f"None of the names fit: the {part.role} has "
            f"{listed(list(tensors), most=2)}, the model {listed(list(model), most=2)}."
        )
    for name, leaf in tensors.items():
        if name in model and model[name].info.shape != leaf.info.shape:
            raise ValueError(
                f"{printable(name)} has the shape {list(leaf.info.shape)}, but "
                f"{list(model[name].info.shape)} in the model."
            )
    missing = [name for name in model if name not in tensors]
    twins = {name: _twin(name, model, tensors) for name in missing}
    own = dict(tensors)
    tensors |= {
        name: model[name] if twin is None else own[twin] for name, twin in twins.items()
    }
    return [name for name, twin in twins.items() if twin is None]


def _twin(
    name: str, model: Mapping[str, Leaf], averaged: Mapping[str, Leaf]
) -> str | None:
    """Return the averaged tensor that a tensor is tied to, as a head to an embedding.

    Averages have such a tensor under one of its names only. Its live values would be
    wrong: tied tensors of a model share their memory, and the last one loaded wins.
    """
    leaf = model[name]
    first = sample(leaf, _COMPARED)
    if not leaf.info.dtype.is_floating_point or (first == first[:1]).all():
        return None  # equal by accident, as zeros
    for other in averaged:
        if (
            other in model
            and model[other].info == leaf.info
            and torch.equal(sample(model[other], _COMPARED), first)
            and _is_same(leaf, model[other])
        ):
            return other
    return None


class _Writer:
    def __init__(
        self,
        tensors: Mapping[str, Leaf],
        header: dict[str, str],
        progress: Callable[[int, int], object],
    ) -> None:
        self._tensors, self._header, self._progress = tensors, header, progress
        self._total = sum(leaf.info.bytes for leaf in tensors.values())
        self._done = 0

    def _blocks(self, part: Part) -> Iterator[Tensor]:
        return self._tensors[part.name].blocks(part.first, part.elements)

    def write(self, path: Path, names: list[str]) -> None:
        """Write some of the tensors to a file, and compare it with the source."""
        infos = {name: self._tensors[name].info for name in names}
        # One thread: memory-mapped files are read faster in order.
        for count in write_blocks(
            path, infos, self._blocks, threads=1, metadata=self._header
        ):
            self._done += count
            self._progress(self._done, self._total)
        stored = read_header(Path(path)).tensors
        for name in names:
            _compare(name, self._tensors[name], stored[name])

    def fill(self, folder: Path, shard: int, beside: list[tuple[Path, str]]) -> None:
        """Write shards and their index, and copy the files beside the source."""
        groups: list[list[str]] = [[]]
        size = 0
        for name, leaf in self._tensors.items():
            if groups[-1] and size + leaf.info.bytes > shard:
                groups.append([])
                size = 0
            groups[-1].append(name)
            size += leaf.info.bytes
        places: dict[str, str] = {}
        for index, names in enumerate(groups, 1):
            file = f"model-{index:05}-of-{len(groups):05}.safetensors"
            file = file if len(groups) > 1 else "model.safetensors"
            self.write(folder / file, names)
            places |= dict.fromkeys(names, file)
        write_index(folder, places, self._total)
        for found, name in beside:
            if not (folder / name).exists():
                copy_file(found, folder / name)


def _compare(name: str, source: Leaf, written: Leaf) -> None:
    """Raise OSError unless the bytes that were written are those of the source."""
    if not _is_same(source, written):
        raise OSError(f"{printable(name)} was not written as it was read")


def _is_same(one: Leaf, other: Leaf) -> bool:
    """Whether two tensors have the same bytes."""
    count = one.info.elements
    pairs = zip(one.blocks(0, count), other.blocks(0, count), strict=True)
    return all(
        torch.equal(
            first.contiguous().view(torch.uint8), second.contiguous().view(torch.uint8)
        )
        for first, second in pairs
    )
