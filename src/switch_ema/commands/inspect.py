"""`switch-ema inspect`: which weights a checkpoint holds."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from switch_ema.bench.errors import UsageError
from switch_ema.commands.output import (
    AnyConsole,
    print_line,
    print_table,
    print_wrapped,
)
from switch_ema.commands.parsing import Positional

if TYPE_CHECKING:
    from switch_ema.doctor.holdings import HeldPart, Holdings

_ORDER = ("live", "average", "weights", "optimizer")
"""Of the rows."""


@dataclass(frozen=True)
class Inspect:
    """Show which weights a checkpoint of any library holds.

    Knows the checkpoints of switch-ema, torch, timm, ema-pytorch, torch_ema, diffusers,
    Stable Diffusion, ultralytics, DiT, Lightning, Transformers, Accelerate, torchtitan,
    MMEngine and peft. Nothing of a file is executed. See docs/doctor.md.

    - switch-ema inspect last.pt
    - switch-ema inspect outputs/checkpoint-500 --card
    """

    checkpoints: Positional[tuple[Path, ...]]
    """Files or folders."""
    card: bool = False
    """Print a paragraph on the weights for a model card, instead of the table."""

    def __call__(self, console: AnyConsole) -> None:
        """Print one table per checkpoint."""
        from switch_ema.doctor.card import model_card
        from switch_ema.doctor.recognise import inspect_checkpoint

        if not self.checkpoints:
            raise UsageError("inspect needs the path of a checkpoint.")
        for path in self.checkpoints:
            try:
                holdings = inspect_checkpoint(path)
            except ValueError as error:
                raise UsageError(str(error)) from error
            if self.card:
                print_line(console, model_card(holdings))
            else:
                _print(console, holdings)


def _print(console: AnyConsole, holdings: "Holdings") -> None:
    print_line(console, f"{holdings.path}: {holdings.format}")
    parts = sorted(holdings.parts, key=lambda part: _ORDER.index(part.role))
    if parts:
        header = ("weights", "where", "tensors", "numbers", "dtype")
        print_table(console, header, [_row(part) for part in parts])
    for part in parts:
        if known := "; ".join(filter(None, (_listed(part.facts), part.note))):
            print_wrapped(console, f"{part.role}: {known}", "  ")
    for name, text in holdings.provenance.items():
        print_wrapped(console, f"{name.removeprefix('switch_ema.')}: {text}", "  ")
    for note in holdings.notes:
        print_wrapped(console, note, "  ")


def _row(part: "HeldPart") -> tuple[str, ...]:
    return (
        part.role,
        part.where or "top level",
        f"{len(part.tensors):,}",
        _short(part.numbers),
        ", ".join(part.dtypes[:2]),
    )


def _listed(facts: Mapping[str, Any]) -> str:
    """Write the facts of a part, with decays as they were given.

    >>> _listed({"decay": 0.8999999761581421, "steps": 12})
    'decay 0.9, steps 12'
    """
    return ", ".join(
        f"{name} {value:.6g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in facts.items()
    )


def _short(count: int) -> str:
    """Write a large number in units.

    >>> _short(22_050_664), _short(512)
    ('22.05 M', '512')
    """
    for size, unit in ((10**9, "B"), (10**6, "M")):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count:,}"
