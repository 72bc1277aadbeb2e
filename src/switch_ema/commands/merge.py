"""`switch-ema merge`: average the checkpoints of one run on disk."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from switch_ema.bench.errors import UsageError
from switch_ema.commands.output import (
    AnyConsole,
    print_line,
    print_table,
    show_progress,
)
from switch_ema.commands.parsing import Positional


@dataclass(frozen=True)
class Merge:
    """Average the checkpoints of one run on disk, of any size.

    Reads safetensors (files or shards), torch.distributed.checkpoint folders and
    torch.save files; writes the average and a record of the inputs. Holds at most one
    tensor of each checkpoint in memory. See docs/merging.md.

    - switch-ema merge a.safetensors b.safetensors --out mean.safetensors
    - switch-ema merge step-100 step-200 step-300 --out merged --profile cosine
    """

    checkpoints: Positional[tuple[Path, ...]]
    """Checkpoints of one model, oldest first."""
    out: Path
    """Output: a safetensors file if it ends in .safetensors, a torch.save file if it
    ends in .pt or .pth (which has to fit into memory), otherwise a folder of shards."""
    profile: Literal["mean", "linear", "minus-sqrt", "cosine", "power"] = "mean"
    """mean, or the learning-rate decay to emulate (linear equals mean); power: the
    power-function average of width --sigma-rel."""
    decay: tuple[float, ...] = ()
    """Instead of a profile: decreasing shares of the learning rate between
    checkpoints; one number fewer than checkpoints."""
    sigma_rel: float = 0.1
    """Width for --profile power, as a share of the checkpoints."""
    key: str = ""
    """Key of the checkpoint to merge, such as model."""
    allow_non_finite: bool = False
    """Merge NaN and infinities, too, instead of refusing them."""

    def __call__(self, console: AnyConsole) -> None:
        """Merge, and print what was written."""
        from switch_ema.averaging.offline.merge import merge_checkpoints

        with show_progress(console, "merging") as advance:
            try:
                merged = merge_checkpoints(
                    self.checkpoints,
                    self.out,
                    self._coefficients(),
                    key=self.key,
                    allow_non_finite=self.allow_non_finite,
                    progress=advance,
                )
            except ValueError as error:
                raise UsageError(str(error)) from error
        pairs = zip(self.checkpoints, merged.coefficients, strict=True)
        rows = [(str(path), f"{weight:.6g}") for path, weight in pairs]
        print_table(console, ("checkpoint", "weight"), rows)
        print_line(console, f"Merged: {merged.path}")
        print_line(console, f"Record: {merged.record}")

    def _coefficients(self) -> str | list[float]:
        from switch_ema.averaging.offline.merge import as_coefficients
        from switch_ema.averaging.offline.profiles import decay_weights, power_profile

        count = len(self.checkpoints)
        if count < 2:
            raise ValueError(f"merge needs at least 2 checkpoints, got {count}.")
        chosen: str | list[float] = self.profile
        if self.decay:
            if self.profile != "mean":
                raise ValueError("--decay replaces --profile; give only one of them.")
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
    """Refuse step-100, step-20: shells sort names alphabetically."""
    names = [str(path) for path in paths]
    if len({re.sub(r"\d+", "0", name) for name in names}) > 1:
        return
    numbers = [[int(digits) for digits in re.findall(r"\d+", name)] for name in names]
    if numbers != sorted(numbers):
        raise ValueError(
            "this profile depends on the order of the checkpoints, and their numbers "
            f"are not increasing: {', '.join(names)}; give the oldest first "
            "(ls -v sorts numerically)."
        )
