"""`switch-ema extract`: write the averaged or the live weights of a checkpoint."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from switch_ema._checks import listed
from switch_ema.bench.errors import UsageError
from switch_ema.commands.output import (
    AnyConsole,
    print_line,
    print_wrapped,
    show_progress,
)
from switch_ema.commands.parsing import Positional


@dataclass(frozen=True)
class Extract:
    """Write the averaged or the live weights of a checkpoint to a file.

    Names are those that the model loads. Tensors are copied in blocks, so a checkpoint
    larger than the memory works, and compared with the source after writing.

    - switch-ema extract last.pt --to ema.safetensors
    - switch-ema extract last.pt --what live --to live.safetensors
    - switch-ema extract ema.pt --like model.safetensors --to model-ema
    """

    checkpoint: Positional[Path]
    """A file or folder; switch-ema inspect shows what it holds."""
    to: Path
    """Output: a file if it ends in .safetensors, otherwise a folder of shards, with the
    configuration files that lie beside the checkpoint."""
    what: Literal["average", "live", "weights"] = "average"
    """Which weights; weights: those of a file that does not say which they are."""
    where: str | None = None
    """Which part, as inspect shows it, if there are several."""
    like: Path | None = None
    """A checkpoint of the same model, whose names and shapes the result must have."""
    shard_gb: float = 5.0
    """Size of a shard in a folder, in gigabytes."""

    def __call__(self, console: AnyConsole) -> None:
        """Write, and print what was written."""
        from switch_ema.doctor.extract import extract_weights

        if not self.shard_gb > 0:
            raise UsageError(f"shard_gb must be positive, got {self.shard_gb}.")
        with show_progress(console, "extracting") as advance:
            try:
                written = extract_weights(
                    self.checkpoint,
                    self.to,
                    self.what,
                    where=self.where,
                    like=self.like,
                    shard_bytes=int(self.shard_gb * 1e9),
                    progress=advance,
                )
            except ValueError as error:
                raise UsageError(str(error)) from error
        print_line(
            console,
            f"Extracted: {written.path}, {written.tensors:,} tensors with "
            f"{written.numbers:,} numbers, compared with the source.",
        )
        if written.from_live:
            names = listed(list(written.from_live))
            text = f"Not averaged, so from the live weights: {names}."
            print_wrapped(console, text, "  ")
