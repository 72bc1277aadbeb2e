"""`switch-ema merge`: checkpoints of one run averaged on disk."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from switch_ema.bench.errors import UsageError


@dataclass(frozen=True)
class Merge:
    """Average the checkpoints of one run on disk, whatever their size.

    Reads safetensors (files or shards), folders of torch.distributed.checkpoint and
    files of torch.save; writes safetensors, and a record of what it was made from.
    Memory: one tensor of each checkpoint at most. docs/merging.md explains.

    - switch-ema merge a.safetensors b.safetensors --out mean.safetensors
    - switch-ema merge step-100 step-200 step-300 --out merged --profile cosine
    """

    checkpoints: tyro.conf.Positional[tuple[Path, ...]]
    """Checkpoints of one model, from the oldest to the newest."""
    out: Path
    """A name that ends in .safetensors is one file, any other a folder of shards."""
    profile: Literal["mean", "linear", "minus-sqrt", "cosine", "power"] = "mean"
    """mean, or the decay of the learning rate that the merge stands for (linear is the
    mean); power is the power-function average of width --sigma-rel."""
    decay: tuple[float, ...] = ()
    """In place of a profile: the shares of the learning rate between the checkpoints,
    falling, one number less than there are checkpoints."""
    sigma_rel: float = 0.1
    """For --profile power: the width, as a share of the checkpoints."""
    key: str = ""
    """The part of the checkpoints that is merged, such as model."""

    def __call__(self, console: Console) -> None:
        """Merge, and say what was written."""
        from switch_ema.averaging.offline.merge import merge_checkpoints

        with Progress(console=console, transient=True) as progress:
            bar = progress.add_task("merging")

            def advance(done: int, total: int) -> None:
                progress.update(bar, completed=done, total=total)

            try:
                merged = merge_checkpoints(
                    self.checkpoints,
                    self.out,
                    self._coefficients(),
                    key=self.key,
                    progress=advance,
                )
            except ValueError as error:
                raise UsageError(str(error)) from error
        table = Table("checkpoint", "weight")
        for path, weight in zip(self.checkpoints, merged.coefficients, strict=True):
            table.add_row(escape(str(path)), f"{weight:.6g}")
        console.print(table)
        console.print(f"Merged: {escape(str(merged.path))}", soft_wrap=True)
        console.print(f"Record: {escape(str(merged.record))}", soft_wrap=True)

    def _coefficients(self) -> str | list[float]:
        from switch_ema.averaging.offline.merge import as_coefficients
        from switch_ema.averaging.offline.profiles import decay_weights, power_profile

        count = len(self.checkpoints)
        if count < 2:
            raise ValueError(f"merge takes at least 2 checkpoints, got {count}.")
        chosen: str | list[float] = self.profile
        if self.decay:
            if self.profile != "mean":
                raise ValueError("--decay takes the place of --profile; give one.")
            if len(self.decay) != count - 1:
                raise ValueError(
                    f"--decay takes {count - 1} numbers for {count} checkpoints, got "
                    f"{len(self.decay)}."
                )
            chosen = decay_weights(self.decay)
        elif self.profile == "power":
            chosen = as_coefficients(power_profile(self.sigma_rel), count)
        if chosen not in ("mean", "linear"):
            _refuse_disorder(self.checkpoints)
        return chosen


def _refuse_disorder(paths: Sequence[Path]) -> None:
    """Refuse step-100, step-20: the order of a shell is not that of numbers."""
    names = [str(path) for path in paths]
    if len({re.sub(r"\d+", "0", name) for name in names}) > 1:
        return
    numbers = [[int(digits) for digits in re.findall(r"\d+", name)] for name in names]
    if numbers != sorted(numbers):
        raise ValueError(
            "this profile weighs old and new checkpoints differently, and they are not "
            f"in the order of their numbers: {', '.join(names)}; give the oldest first "
            "(ls -v sorts so)."
        )
