"""The parts of a checkpoint: live weights, averages, optimizer state."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from switch_ema.doctor.reading import Leaf

Role = Literal["live", "average", "weights", "optimizer"]
"""``weights``: the file does not say whether they are live or averaged."""

_WRAPPERS = ("module.", "_forward_module.")
"""Prefixes that DDP and Fabric add to every name."""
_INNER = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
"""Parts of names that torch.compile and FSDP add anywhere."""

_STATISTICS = ("running_mean", "running_var")
"""Floating-point buffers of normalisation layers."""


@dataclass(frozen=True)
class HeldPart:
    """One set of tensors of a checkpoint."""

    role: Role
    where: str
    """Keys that lead to it, for people."""
    tensors: Mapping[str, Leaf]
    """By the names that a model loads."""
    library: str = ""
    """What wrote it, if that can be recognised."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What the file declares: decay, steps and the like."""
    is_named: bool = True
    """Whether the file has names; otherwise they are positions in a list."""
    note: str = ""

    @property
    def numbers(self) -> int:
        """How many numbers the tensors have."""
        return sum(leaf.info.elements for leaf in self.tensors.values())

    @property
    def dtypes(self) -> list[str]:
        """Dtypes, the most frequent first."""
        counts: dict[str, int] = {}
        for leaf in self.tensors.values():
            name = str(leaf.info.dtype).removeprefix("torch.")
            counts[name] = counts.get(name, 0) + leaf.info.elements
        return sorted(counts, key=lambda name: -counts[name])


@dataclass(frozen=True)
class Holdings:
    """A checkpoint and its parts."""

    path: Path
    format: str
    """What wrote it, and how it is stored."""
    parts: tuple[HeldPart, ...]
    notes: tuple[str, ...] = ()
    provenance: Mapping[str, str] = field(default_factory=dict)
    """What a safetensors header tells about the weights."""

    def of(self, role: Role) -> list[HeldPart]:
        """Return the parts with a role."""
        return [part for part in self.parts if part.role == role]


def is_statistic(name: str) -> bool:
    """Whether a tensor is a running statistic of a normalisation layer."""
    return name.endswith(_STATISTICS)


def plain_names(names: Iterable[str]) -> dict[str, str]:
    """Map names to those without the prefixes of wrappers.

    >>> plain_names(["module._orig_mod.fc.weight", "module.layers._orig_mod.bias"])
    {'module._orig_mod.fc.weight': 'fc.weight', 'module.layers._orig_mod.bias': 'layers.bias'}
    """  # noqa: E501
    result = {
        name: ".".join(part for part in name.split(".") if part not in _INNER)
        for name in names
    }
    while result:
        prefix = next(
            (
                prefix
                for prefix in _WRAPPERS
                if all(plain.startswith(prefix) for plain in result.values())
            ),
            None,
        )
        if prefix is None:
            break
        result = {name: plain[len(prefix) :] for name, plain in result.items()}
    return result
