"""The best average of a run, returned only if the last one is clearly worse."""

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakSet

import torch
from torch import Tensor, nn

from switch_ema._checks import check_count, check_positive
from switch_ema._files import write_atomically
from switch_ema.averaging._signals import Uninterrupted
from switch_ema.averaging.averager import HOLDERS, Averager
from switch_ema.averaging.distributed import fsdp
from switch_ema.averaging.offline import export
from switch_ema.averaging.shadow.state import StateMismatch, snapshot
from switch_ema.averaging.view.stage import Block


def standard_error(share: float, n: int) -> float:
    """Standard error ``sqrt(p * (1 - p) / n)`` of a proportion p of n examples.

    >>> standard_error(0.9, 900)
    0.01
    """
    if not 0 <= share <= 1:
        raise ValueError(
            f"With n, the score must be a proportion in [0, 1], such as an accuracy, "
            f"got {share!r}; for other scores pass error instead of n."
        )
    return round(math.sqrt(share * (1 - share) / n), 15)


def is_clearly_worse(
    last: float, best: float, error: float, higher_is_better: bool
) -> bool:
    """Whether the last score is worse than the best by more than its error."""
    loss = best - last if higher_is_better else last - best
    return not loss <= error  # a last score that is NaN is worse, too


class _File(NamedTuple):
    """A copy on disk, a file per process."""

    run: str
    """Tells apart the files of several Bests in one folder."""
    epoch: int

    @property
    def name(self) -> str:
        """The name of the part that this process has."""
        return f"best-{self.run}-epoch{self.epoch:06d}-rank{fsdp.rank()}.pt"


_RUN = re.compile("[0-9a-f]{12}")


class Best:
    """Keep the best average by a held-out score; return it if the last is worse.

    :meth:`update` takes a score after each epoch and copies the average if the score is
    the best so far. At the end :meth:`averaged` and the other views show that copy only
    if the last score is worse by more than one standard error, and the last average
    otherwise: always taking the best would select by noise.

    Score on data that is neither trained on nor reported. With several processes, all
    must call, and rank 0's score counts; for sharded models (FSDP2) each rank keeps its
    own part.

    Args:
        averager: the averager whose average is kept.
        higher_is_better: whether a higher score is better, as for an accuracy.
        n: number of held-out examples, for a score that is a proportion in [0, 1] such
            as an accuracy or error rate; its standard error is
            ``sqrt(p * (1 - p) / n)``.
        error: the standard error of any other score.
        folder: store the copy in this folder, one file per process, instead of in
            memory. Several Bests may share it.

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
            raise ValueError("Best needs exactly one of n and error.")
        self.averager = averager
        self.scores: list[float] = []
        """The scores so far."""
        self._higher, self._error = bool(higher_is_better), error
        self._n = None if n is None else check_count("n", n)
        if error is not None and error != 0:
            check_positive("error", error)
        self._folder = None if folder is None else Path(folder)
        self._best: int | None = None
        # The copy; if it is in a file, only what refresh() has added to it.
        self._kept: dict[str, Tensor] = {}
        self._run = ""
        self._file: _File | None = None
        # Files that a saved state dict may still need, and all that this object owns.
        self._saved: list[_File] = []
        self._own: set[_File] = set()
        _EXISTING.add(self)
        HOLDERS.add(self)

    def __repr__(self) -> str:
        """Return the best and the last score, and which average is shown."""
        scores = ""
        if self._best is not None:
            best, last = self.scores[self._best - 1], self.scores[-1]
            shown = "best" if self.is_better_than_last else "last"
            scores = f", best={best:.6g}, last={last:.6g}, shown={shown!r}"
        return f"Best({self.averager.name!r}, best_epoch={self._best}{scores})"

    def __getstate__(self) -> dict[str, Any]:
        """Copy everything but the ownership of the original's files."""
        return vars(self) | {"_run": "", "_own": set(), "_saved": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore what ``__getstate__`` returned."""
        vars(self).update(state)
        _EXISTING.add(self)
        HOLDERS.add(self)

    def update(self, score: float) -> bool:
        """Record the held-out score of the current average, after an epoch.

        Returns:
            Whether the score is the best so far and the average was copied; never for
            NaN.

        Raises:
            OSError: the copy could not be written, for example on a full disk. Nothing
                has changed, so the call can be repeated.
        """
        score = self.averager._agreed(float(score))
        if self._n is not None and not math.isnan(score):
            standard_error(score, self._n)  # raises if it is not a proportion
        if math.isnan(score) or not self._improves(score):
            self.scores.append(score)
            return False
        epoch, kept = len(self.scores) + 1, self.averager._copy_average()
        file = None if self._folder is None else self._write(kept, epoch)
        with Uninterrupted():
            self._kept, self._file = {} if file else kept, file
            self._best = epoch
            self.scores.append(score)
        self._delete_unneeded()
        return True

    @property
    def best_epoch(self) -> int | None:
        """Number of the update with the best score, from 1; None without a score."""
        return self._best

    @property
    def chosen_epoch(self) -> int | None:
        """Number of the update whose average is shown, from 1; None without updates.

        Train this many epochs again on all data to use the held-out part, too.
        """
        return self._best if self.is_better_than_last else len(self.scores) or None

    @property
    def is_better_than_last(self) -> bool:
        """Whether the last score is worse than the best by more than one error."""
        if self._best is None:
            return False
        last, best = self.scores[-1], self.scores[self._best - 1]
        error = self._error
        if error is None:
            assert self._n is not None
            error = 0.0 if math.isnan(last) else standard_error(last, self._n)
        return is_clearly_worse(last, best, error, self._higher)

    # Showing the chosen average.

    def averaged(self) -> Block[nn.Module]:
        """Hold the chosen average in the model for the length of a ``with`` block."""
        if not self.is_better_than_last:
            return self.averager.averaged()
        return self.averager._showing_copy(self._copy)

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
        """Return the scores and, unless it is stored in a file, the copy."""
        if self._file is not None:
            self._saved = [*self._saved, self._file][-2:]
        return {
            "scores": list(self.scores),
            "best": self._best,
            "average": {n: t.clone() for n, t in self._kept.items()},
            "run": None if self._file is None else self._file.run,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned.

        Raises:
            StateMismatch: not a state of a Best, or its file is missing; nothing has
                changed.
        """
        if not isinstance(state, Mapping) or state.keys() != _STATE:
            raise StateMismatch("This is not the state_dict() of a Best.")
        scores, best = state["scores"], state["best"]
        if not isinstance(scores, list) or not all(
            isinstance(s, float) for s in scores
        ):
            raise StateMismatch("The state's scores are not a list of numbers.")
        is_epoch = isinstance(best, int) and 1 <= best <= len(scores)
        if best is not None and not is_epoch:
            raise StateMismatch(
                f"The state's best epoch must be in [1, {len(scores)}], got {best!r}."
            )
        kept: dict[str, Tensor] = {}
        file: _File | None = None
        if not isinstance(state["average"], Mapping):
            raise StateMismatch("The state's average has no names.")
        if best is not None and self._folder is None:
            self.averager._check_copy(state["average"])
        elif best is not None:
            file = self._existing_file(state["run"], best)
        if best is not None:
            kept = dict(state["average"])
        self.scores, self._best = list(scores), best
        self._kept, self._file = kept, file
        # Other runs may resume from the same state, so new files get a new name.
        self._run = ""
        if file is not None:
            self._saved = [file]
            self._own |= self._inherited(file.run)

    def follow_refresh(self) -> None:
        """Fit the copy to the averager's model after a ``refresh()``."""
        if self._best is None:
            return
        before = self._copy()
        copied = dict(before)
        self.averager._fit_copy(copied)
        if self._file is not None:
            copied = {
                name: tensor
                for name, tensor in copied.items()
                if name in self._kept or tensor is not before.get(name)
            }
        self._kept = copied

    def _improves(self, score: float) -> bool:
        if self._best is None:
            return True
        best = self.scores[self._best - 1]
        return score > best if self._higher else score < best

    # Files.

    def _path(self, file: _File) -> Path:
        assert self._folder is not None
        return self._folder / file.name

    def _write(self, copy: dict[str, Tensor], epoch: int) -> _File:
        assert self._folder is not None
        if not self._run:
            drawn = float(int.from_bytes(os.urandom(6), "big"))
            self._run = f"{int(self.averager._agreed(drawn)):012x}"
        self._folder.mkdir(parents=True, exist_ok=True)
        parts = {name: fsdp.local_part(tensor) for name, tensor in copy.items()}
        file = _File(self._run, epoch)
        write_atomically(self._path(file), lambda path: torch.save(parts, path))
        self._own.add(file)
        return file

    def _delete_unneeded(self) -> None:
        # Another Best, such as a copy, may still need a file of this one.
        needed = {file for best in _EXISTING for file in (*best._saved, best._file)}
        for file in self._own - needed:
            self._path(file).unlink(missing_ok=True)
            self._own.remove(file)

    def _existing_file(self, run: Any, epoch: int) -> _File:
        """Return the file of a loaded state; accept only names that Best writes."""
        if not isinstance(run, str) or not _RUN.fullmatch(run):
            raise StateMismatch(
                f"The state's run is {run!r}; it was not saved by a Best with a folder."
            )
        file = _File(run, epoch)
        if not self._path(file).exists():
            raise StateMismatch(f"The state's file {self._path(file)} is missing.")
        return file

    def _inherited(self, run: str) -> set[_File]:
        """List files left by the saved run, such as epochs after its last state."""
        assert self._folder is not None
        names = self._folder.glob(f"best-{run}-epoch*-rank{fsdp.rank()}.pt")
        epochs = (re.search(r"-epoch(\d+)-", path.name) for path in names)
        return {_File(run, int(found[1])) for found in epochs if found}

    def _copy(self) -> dict[str, Tensor]:
        if self._file is None:
            return self._kept
        parts = torch.load(self._path(self._file), weights_only=True)
        return self.averager._as_copy(parts) | self._kept


_STATE = {"scores", "best", "average", "run"}
_EXISTING: "WeakSet[Best]" = WeakSet()
