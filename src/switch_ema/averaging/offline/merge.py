"""Averages checkpoints of one run on disk, into a file or folder.

Merging the last checkpoints of a run with a constant learning rate replaces a
learning-rate decay (WSM, https://arxiv.org/abs/2507.17634; PMA,
https://arxiv.org/abs/2505.12082). Tensors are read, averaged and written in blocks, so
that models larger than the memory can be merged.
"""

import json
import os
import re
from cmath import isfinite
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any, Union

import torch
from torch import Tensor

from switch_ema import __version__
from switch_ema._checks import check_choice, printable
from switch_ema._files import (
    remove_leftovers,
    write_atomically,
    write_folder_atomically,
)
from switch_ema.averaging.offline.checkpoints import (
    INDEX,
    Checkpoint,
    open_checkpoint,
)
from switch_ema.averaging.offline.confined import copy_file, files_below
from switch_ema.averaging.offline.profiles import (
    DECAYS,
    Profile,
    decay_profile,
    profile_weights,
    uniform_profile,
)
from switch_ema.averaging.offline.provenance import provenance
from switch_ema.averaging.offline.soup import (
    differences,
    exact_like,
    is_averaged,
    scaled,
)
from switch_ema.averaging.offline.streams import (
    Part,
    TensorInfo,
    round_once,
    write_blocks,
)

_MEAN = "mean"
_SAFETENSORS = ".safetensors"
_TORCH = (".pt", ".pth")

_MOST_THREADS = 4
"""More threads would wait for Python, which calls torch block by block; with at least
two, one reads and writes while another computes."""

Weights = Union[str, Profile, Sequence[float]]
"""The name of a profile, a profile, or one weight per checkpoint."""

_BESIDE = (
    "config.json",
    "generation_config.json",
    "adapter_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "vocab*",
    "merges.txt",
)
"""Files that a Transformers or peft folder needs besides its weights."""


@dataclass(frozen=True)
class Merged:
    """The result of :func:`merge_checkpoints`."""

    path: Path
    """The file, or the folder of shards."""
    record: Path
    """The JSON file that records the inputs."""
    coefficients: tuple[float, ...]
    """The weight of each checkpoint, in the order given."""


def merge_checkpoints(
    checkpoints: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    weights: Weights = _MEAN,
    *,
    key: str = "",
    allow_non_finite: bool = False,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> Merged:
    """Average checkpoints of one run on disk: ``sum(c_j * checkpoint_j)``.

    Sums are taken in double precision and rounded once, to the dtype of the files; the
    mean of float32 files is that of :func:`uniform_soup`, bit for bit. At most one
    tensor of each checkpoint is in memory, of safetensors files only a block of it.
    Tensors of whole numbers are those of the last checkpoint. Nothing appears under
    ``out`` unless all of it could be written.

    Args:
        checkpoints: from the oldest to the newest: safetensors files, folders or
            indices of safetensors shards, folders of torch.distributed.checkpoint, or
            files of ``torch.save`` (which are read with ``weights_only=True``).
        out: a name that ends in ``.safetensors`` is one file. A name that ends in
            ``.pt`` or ``.pth`` is a file of ``torch.save``, for which the result has to
            fit into memory. Any other is a folder with the shards, the index and the
            configuration of the last checkpoint.
        weights: ``"mean"``; ``"linear"`` (the same), ``"minus-sqrt"`` or ``"cosine"``,
            the decay of the learning rate that the merge stands for; a profile such as
            ``power_profile(0.1)``; or one number per checkpoint, such as
            ``decay_weights([0.8, 0.5, 0.1])`` returns.
        key: the part of the checkpoints that is merged, such as ``model``.
        allow_non_finite: merge NaN and infinities, too, instead of refusing them.
        progress: called with the number of bytes written so far, and in total.

    Returns:
        What was written, with a record of what it was made from.

    Raises:
        ValueError: a checkpoint is damaged, belongs to another model than the first or
            has values that are not finite (the message names the tensors), or the
            weights do not fit.
        FileExistsError: ``out`` already exists.
        FileNotFoundError: a checkpoint or the parent folder of ``out`` is missing.
    """
    if isinstance(checkpoints, (str, os.PathLike)) or not checkpoints:
        raise ValueError(f"checkpoints must be a list of paths, got {checkpoints!r}.")
    coefficients = as_coefficients(weights, len(checkpoints))
    out = Path(out)
    is_file = _is_file(out)
    record = out.with_suffix(".merge.json") if is_file else out / "merge.json"
    for path in (out, record):
        if path.exists():
            raise FileExistsError(17, "already exists; choose another name", str(path))
    if not out.absolute().parent.is_dir():
        raise FileNotFoundError(2, "folder does not exist", str(out.parent))
    opened = [open_checkpoint(path, key) for path in map(Path, checkpoints)]
    merge = _Merge(opened, coefficients, key, allow_non_finite, progress)
    beside = [] if is_file else list(files_beside(opened[-1].path))
    for path in (out, record):
        remove_leftovers(path)
    description = json.dumps(_describe(merge, weights), indent=2) + "\n"
    if is_file:
        write = merge.write if out.suffix == _SAFETENSORS else merge.save
        write_atomically(out, partial(write, names=list(merge.tensors)))
        write_atomically(record, description)
    else:
        write_folder_atomically(out, lambda to: merge.fill(to, description, beside))
    return Merged(out, record, tuple(coefficients))


def _is_file(out: Path) -> bool:
    """Whether the result is one file; refuse a name that may mean either.

    >>> [_is_file(Path(name)) for name in ("m.safetensors", "m.pt", "m", "llama-3.1")]
    [True, True, False, False]
    """
    if out.suffix in (_SAFETENSORS, *_TORCH):
        return True
    if re.fullmatch(r"\.[A-Za-z]\w*", out.suffix):
        raise ValueError(
            f"out must end in {_SAFETENSORS}, {' or '.join(_TORCH)} for a file, or be "
            f"a folder without an ending, got {printable(out.name)!r}."
        )
    return False


def as_coefficients(weights: Weights, count: int) -> list[float]:
    """Return one coefficient per checkpoint."""
    if isinstance(weights, str):
        check_choice("weights", weights, (_MEAN, *DECAYS))
        is_mean = weights == _MEAN
        weights = uniform_profile(count) if is_mean else decay_profile(DECAYS[weights])
    if callable(weights):
        return profile_weights(weights, count)
    numbers = [float(weight) for weight in weights]
    if len(numbers) != count or not abs(sum(numbers) - 1) < 1e-6:
        raise ValueError(
            f"weights must be {count} numbers, one per checkpoint, that sum to 1, got "
            f"{numbers}."
        )
    return numbers


class _Merge:
    """Checkpoints of one model, and the tensors of their weighted sum."""

    def __init__(
        self,
        checkpoints: Sequence[Checkpoint],
        coefficients: Sequence[float],
        key: str,
        allow_non_finite: bool,
        progress: Callable[[int, int], object],
    ) -> None:
        self.checkpoints, self.coefficients = checkpoints, coefficients
        self._allow_non_finite = allow_non_finite
        # Names in each checkpoint, by names in the result.
        self._names = [checkpoint.select(key) for checkpoint in checkpoints]
        tensors = [
            {own: checkpoint.tensors[name] for own, name in names.items()}
            for checkpoint, names in zip(checkpoints, self._names, strict=True)
        ]
        for checkpoint, found in zip(checkpoints, tensors, strict=True):
            _check_alike(checkpoint, found, checkpoints[0], tensors[0])
        self.tensors: dict[str, TensorInfo] = tensors[0]
        self._header = provenance(
            "merge",
            checkpoints=len(checkpoints),
            source=", ".join(checkpoint.path.name for checkpoint in checkpoints),
        )
        self._progress = progress
        self._done, self._total = 0, sum(info.bytes for info in self.tensors.values())

    def blocks(self, part: Part) -> Iterator[Tensor]:
        """Compute a part of a tensor of the result block by block."""
        readers = [
            checkpoint.blocks(part._replace(name=names[part.name]))
            for checkpoint, names in zip(self.checkpoints, self._names, strict=True)
        ]
        if not is_averaged(self.tensors[part.name].dtype):
            return readers[-1]
        doubt = partial(self._refuse_non_finite, part.name)
        return _weighted_sum(readers, self.coefficients, doubt)

    def _refuse_non_finite(self, name: str, blocks: Sequence[Tensor]) -> None:
        """Name the checkpoint that has a NaN or an infinity, if it counts."""
        if self._allow_non_finite:
            return
        for checkpoint, coefficient, block in zip(
            self.checkpoints, self.coefficients, blocks, strict=True
        ):
            # In float64, because torch cannot test numbers of 8 bits.
            if coefficient and not torch.isfinite(scaled(block, 1.0)).all():
                raise ValueError(
                    f"{checkpoint.path} has NaN or infinite values in "
                    f"{printable(name)}; leave it out, or merge them as they are with "
                    "allow_non_finite (--allow-non-finite)."
                )

    def write(self, path: Path, names: Sequence[str]) -> None:
        """Write some of the tensors to one file."""
        # Formats that read whole tensors should hold only one in memory at a time.
        has_parts = all(checkpoint.has_parts for checkpoint in self.checkpoints)
        threads = min(max(torch.get_num_threads(), 2), _MOST_THREADS)
        written = write_blocks(
            path,
            {name: self.tensors[name] for name in names},
            self.blocks,
            threads=threads if has_parts else 1,
            metadata=self._header,
        )
        for count in written:
            self._done += count
            self._progress(self._done, self._total)

    def save(self, path: Path, names: Sequence[str]) -> None:
        """Write some of the tensors with ``torch.save``, as a state dict."""
        state: dict[str, Tensor] = {}
        for name in names:
            info = self.tensors[name]
            state[name] = torch.empty(info.shape, dtype=info.dtype)
            flat, first = state[name].reshape(-1), 0
            for block in self.blocks(Part(name, 0, info.elements)):
                round_once(block, out=flat[first : first + block.numel()])
                first += block.numel()
            self._done += info.bytes
            self._progress(self._done, self._total)
        torch.save(state, path)

    def fill(
        self, folder: Path, record: str, beside: Sequence[tuple[Path, str]]
    ) -> None:
        """Write shards like those of the last checkpoint, and the files beside them."""
        last, plain = self.checkpoints[-1], {n: o for o, n in self._names[-1].items()}
        places: dict[str, str] = {}
        for file, names in last.files().items():
            chosen = [plain[name] for name in names if name in plain]
            self.write(folder / file, chosen)
            places |= dict.fromkeys(chosen, file)
        write_index(folder, places, self._total)
        for found, name in beside:
            copy_file(found, folder / name)
        (folder / "merge.json").write_text(record)


def write_index(folder: Path, places: dict[str, str], size: int) -> None:
    """Write the index of shards, unless there is only one.

    Args:
        folder: of the shards.
        places: the file of each tensor.
        size: of all tensors, in bytes.
    """
    if len(set(places.values())) > 1:
        index = {"metadata": {"total_size": size}, "weight_map": places}
        (folder / f"model{INDEX}").write_text(json.dumps(index, indent=2) + "\n")


def files_beside(path: Path) -> Iterator[tuple[Path, str]]:
    """Yield the files beside the weights of a checkpoint, and their relative paths.

    Raises:
        ValueError: one of them is a link that leads out of the folder, or a pipe.
    """
    folder = path if path.is_dir() else path.parent
    for pattern in _BESIDE:
        for found in sorted(folder.glob(pattern)):
            if found.suffix != ".safetensors":  # those are weights
                yield from files_below(folder, found.name)


def _weighted_sum(
    readers: Sequence[Iterator[Tensor]],
    coefficients: Sequence[float],
    doubt: Callable[[Sequence[Tensor]], object],
) -> Iterator[Tensor]:
    """Sum blocks in memory that is reused for each block.

    Args:
        readers: the blocks of each checkpoint.
        coefficients: its factor.
        doubt: called with blocks whose sum may not be finite.
    """
    total = term = None
    for blocks in zip(*readers, strict=True):
        first, *others = blocks
        if total is None or term is None:  # the first block is the largest
            total, term = exact_like(first), exact_like(first)
        elif first.numel() < total.numel():
            total, term = total[: first.numel()], term[: first.numel()]
        scaled(first, coefficients[0], out=total)
        for block, coefficient in zip(others, coefficients[1:], strict=True):
            total.add_(scaled(block, coefficient, out=term))
        if not isfinite(total.sum().item()):
            doubt(blocks)
        yield total


def _check_alike(
    checkpoint: Checkpoint,
    found: dict[str, TensorInfo],
    first: Checkpoint,
    expected: dict[str, TensorInfo],
) -> None:
    """Raise ValueError unless names, shapes and dtypes are those of the first."""
    shapes, others = (
        {name: list(info.shape) for name, info in tensors.items()}
        for tensors in (expected, found)
    )
    said = differences(shapes, others, "shape") or differences(
        {name: info.dtype for name, info in expected.items()},
        {name: info.dtype for name, info in found.items()},
        "dtype",
    )
    if said:
        raise ValueError(
            f"{checkpoint.path} belongs to another model than {first.path}; {said}."
        )


def _describe(merge: _Merge, weights: Weights) -> dict[str, Any]:
    """Return the record of the inputs and the rule."""
    return {
        "made_by": f"switch-ema {__version__}, torch {torch.__version__}",
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "weights": weights if isinstance(weights, str) else "as given",
        "rule": "sum of coefficient * checkpoint in float64, rounded to the dtype",
        "checkpoints": [
            {
                "path": str(checkpoint.path.absolute()),
                "coefficient": coefficient,
                "modified": _modified(checkpoint.path),
            }
            for checkpoint, coefficient in zip(
                merge.checkpoints, merge.coefficients, strict=True
            )
        ],
        "tensors": len(merge.tensors),
        "parameters": sum(
            i.elements for i in merge.tensors.values() if is_averaged(i.dtype)
        ),
        "copied_from_the_last": [
            name for name, i in merge.tensors.items() if not is_averaged(i.dtype)
        ],
    }


def _modified(path: Path) -> str:
    seconds = path.stat().st_mtime
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds")
