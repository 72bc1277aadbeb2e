"""The best average of a run, returned only where the last is clearly worse."""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from switch_ema._checks import check_count, check_positive
from switch_ema._files import write_atomically
from switch_ema.averaging.averager import Averager
from switch_ema.averaging.distributed import fsdp
from switch_ema.averaging.offline import export
from switch_ema.averaging.shadow.state import StateMismatch, snapshot
from switch_ema.averaging.view.stage import Block


def standard_error(share: float, n: int) -> float:
    """``sqrt(p * (1 - p) / n)`` of a share p of n examples.

    >>> standard_error(0.9, 900)
    0.01
    """
    if not 0 <= share <= 1:
        raise ValueError(
            f"With n, the score must be a share in [0, 1], such as an accuracy, got "
            f"{share!r}; give other scores their error."
        )
    return round(math.sqrt(share * (1 - share) / n), 15)


def is_clearly_worse(
    last: float, best: float, error: float, higher_is_better: bool
) -> bool:
    """Whether the last score is worse than the best by more than its error."""
    loss = best - last if higher_is_better else last - best
    return not loss <= error  # a last score that is NaN is worse, too


class Best:
    """Keep the best average by a held-out score; return it if the last is worse.

    Told a score after each epoch, it copies the average whenever the score is the best
    so far. At the end :meth:`averaged` and the other views show that copy only if the
    last score is worse by more than one standard error, else the last average: always
    taking the best would choose by noise.

    The score must come from data that is neither trained on nor reported. With several
    processes all must call, and the score of rank 0 counts; sharded models (FSDP2) keep
    their own part each.

    Args:
        averager: whose averages are kept.
        higher_is_better: whether a higher score is better, as of an accuracy.
        n: held-out examples of a score that is a share in [0, 1], such as an accuracy
            or an error rate; its standard error is ``sqrt(p * (1 - p) / n)``.
        error: the standard error of any other score.
        folder: keep the copy in a file per process in this folder, instead of in
            memory.

    >>> from switch_ema import EMA
    >>> ema = EMA(nn.Linear(1, 1))
    >>> best = Best(ema, higher_is_better=True, n=100)
    >>> [best.update(accuracy) for accuracy in (0.8, 0.9, 0.88, 0.7)]
    [True, True, False, False]
    >>> best.best_epoch, best.is_better_than_last
    (2, True)
    """

    def __init__(
        self,
        averager: Averager,
        *,
        higher_is_better: bool,
        n: int | None = None,
        error: float | None = None,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        if (n is None) == (error is None):
            raise ValueError("Best takes either n or error, the score's own error.")
        self.averager = averager
        self.scores: list[float] = []
        """The scores so far."""
        self._higher, self._error = bool(higher_is_better), error
        self._n = None if n is None else check_count("n", n)
        if error is not None and error != 0:
            check_positive("error", error)
        self._folder = None if folder is None else Path(folder)
        self._best: int | None = None
        self._kept: dict[str, Tensor] | None = None
        # Epochs whose files a state dict may still name.
        self._saved: list[int] = []

    def update(self, score: float) -> bool:
        """Take the held-out score of the present average, after an epoch.

        Returns:
            Whether it is the best so far, so that the average was copied. A score that
            is NaN never is.
        """
        score = self.averager._agreed(float(score))
        if self._n is not None and not math.isnan(score):
            standard_error(score, self._n)  # refuses what is no share
        self.scores.append(score)
        if math.isnan(score) or not self._improves(score):
            return False
        self._best = len(self.scores)
        self._keep(self.averager._copy_average())
        return True

    @property
    def best_epoch(self) -> int | None:
        """Which update had the best score, counted from 1; None before one had any."""
        return self._best

    @property
    def is_better_than_last(self) -> bool:
        """Whether the last score is worse than the best by more than its error."""
        if self._best is None:
            return False
        last, best = self.scores[-1], self.scores[self._best - 1]
        error = self._error
        if error is None:
            assert self._n is not None
            error = 0.0 if math.isnan(last) else standard_error(last, self._n)
        return is_clearly_worse(last, best, error, self._higher)

    # What is shown.

    def averaged(self) -> Block[nn.Module]:
        """Hold the chosen average in the model for the length of a ``with`` block."""
        if not self.is_better_than_last:
            return self.averager.averaged()
        return self.averager._showing_copy(self._copy())

    def averaged_state_dict(self, *, full: bool = False) -> dict[str, Any]:
        """Return the chosen average, as :meth:`Averager.averaged_state_dict` does.

        Args:
            full: gather whole tensors on the CPU, for models sharded by FSDP2.
        """
        with self.averaged() as model:
            return snapshot(model, full)

    def save_averaged(self, path: str | os.PathLike[str]) -> None:
        """Write the chosen average to a safetensors file."""
        export.save_averaged(self, path)

    # Saving and resuming.

    def state_dict(self) -> dict[str, Any]:
        """Return the scores and, unless it is in a file, the copy."""
        if self._folder is not None and self._best is not None:
            self._saved = [*self._saved, self._best][-2:]
        kept = {n: t.clone() for n, t in (self._kept or {}).items()}
        return {"scores": list(self.scores), "best": self._best, "average": kept}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` returned.

        Raises:
            StateMismatch: it is no such state, or its file is gone; nothing changed.
        """
        if not isinstance(state, Mapping) or state.keys() != {
            "scores",
            "best",
            "average",
        }:
            raise StateMismatch("This is not the state_dict() of a Best.")
        scores, best = state["scores"], state["best"]
        if not isinstance(scores, list) or not all(
            isinstance(s, float) for s in scores
        ):
            raise StateMismatch("The state's scores are no list of numbers.")
        is_epoch = isinstance(best, int) and 1 <= best <= len(scores)
        if best is not None and not is_epoch:
            raise StateMismatch(f"The state's best epoch is {best!r}, not one of them.")
        kept = dict(state["average"]) or None
        if best is not None and self._folder is None:
            self.averager._check_copy(kept)
        elif best is not None and not self._path(best).exists():
            raise StateMismatch(f"{self._path(best)}, which the state names, is gone.")
        self.scores, self._best, self._kept = list(scores), best, kept
        self._saved = [best] if best is not None and self._folder is not None else []

    def _improves(self, score: float) -> bool:
        if self._best is None:
            return True
        best = self.scores[self._best - 1]
        return score > best if self._higher else score < best

    def _path(self, epoch: int) -> Path:
        assert self._folder is not None
        return self._folder / f"best-epoch{epoch:06d}-rank{fsdp.rank()}.pt"

    def _keep(self, copy: dict[str, Tensor]) -> None:
        if self._folder is None:
            self._kept = copy
            return
        assert self._best is not None
        self._folder.mkdir(parents=True, exist_ok=True)
        parts = {name: fsdp.local_part(tensor) for name, tensor in copy.items()}
        path = self._path(self._best)
        write_atomically(path, lambda file: torch.save(parts, file))
        needed = {self._path(epoch) for epoch in (*self._saved, self._best)}
        for other in self._folder.glob(f"best-epoch*-rank{fsdp.rank()}.pt"):
            if other not in needed:
                other.unlink(missing_ok=True)

    def _copy(self) -> dict[str, Tensor]:
        if self._kept is not None:
            return self._kept
        assert self._best is not None
        parts = torch.load(self._path(self._best), weights_only=True)
        return self.averager._as_copy(parts)
