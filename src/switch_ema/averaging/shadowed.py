"""A model with an average beside it, which can be shown in it, saved and refreshed."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from switch_ema.averaging.model.names import unwrap
from switch_ema.averaging.model.slots import Filter
from switch_ema.averaging.model.structure import Structure
from switch_ema.averaging.offline import export
from switch_ema.averaging.shadow import state
from switch_ema.averaging.shadow.shadow import Shadow
from switch_ema.averaging.shadow.storage import Storage
from switch_ema.averaging.view import recalibration, stage


class ShadowedModel:
    """What can be done with an average, whoever makes it."""

    def __init__(
        self, model: nn.Module, storage: Storage, include: Filter, exclude: Filter
    ) -> None:
        self._wrapped, self._model = model, unwrap(model)
        self._has_started = False
        self._structure = Structure(self._model, include, exclude)
        self._shadow = Shadow(self._structure.slots, storage)

    def _shadows(self) -> dict[str, Shadow]:
        """Return all averaged copies by name in the state dict."""
        return {"shadow": self._shadow}

    @property
    def has_average(self) -> bool:
        """Whether there is an average yet; until then the live weights are shown."""
        return True

    @contextmanager
    def averaged(self) -> Iterator[nn.Module]:
        """Hold the average in the model for the length of a ``with`` block.

        The weights are exchanged in place, without a second copy of the model (where
        the shadow has another dtype, the live weights are parked beside it). They come
        back bit for bit on any way out of the block. Blocks nest; inside a block of
        another averager of the same model, the innermost one's average is shown.
        """
        self._check_structure()
        self._follow_until_first_step()
        shown = self._shadow if self.has_average else None
        with stage.showing(self._model, shown):
            yield self._wrapped

    def averaged_state_dict(self, *, full: bool = False) -> dict[str, Any]:
        """Return a snapshot of the averaged model, for ``model.load_state_dict``.

        It shares no memory with the model or the shadow, has the model's dtypes and
        carries plain names, whatever the model is wrapped in.

        Args:
            full: for models sharded by FSDP2, of which each rank else returns its own
                shards as DTensors: gather whole tensors on the CPU. All ranks must
                call; rank 0 returns them, the others an empty dict.
        """
        with self.averaged():
            return state.snapshot(self._model, full)

    def save_averaged(self, path: str | os.PathLike[str]) -> None:
        """Write the averaged model to a safetensors file; see :mod:`.export`."""
        export.save_averaged(self, path)

    def averaged_tensors(self) -> dict[str, torch.Tensor]:
        """Return the averaged tensors by plain name, without copying them.

        For those who read the average at every step, such as a teacher. The tensors
        are to be read only, and change with the next step; tied weights stand under
        each of their names, in the shadow's dtype and on its device.
        """
        if self._structure.may_have_changed():
            self._check_structure()
        self._follow_until_first_step()
        shadow = self._shadow
        tensors = shadow.averages() if self.has_average else shadow.originals()
        return {
            name: tensor.detach()
            for slot, tensor in zip(shadow.slots, tensors, strict=True)
            for name in slot.names
        }

    def live_state_dict(self, *, full: bool = False) -> dict[str, Any]:
        """Return the same for the live weights, also inside ``averaged()``."""
        with stage.showing(self._model, None):
            return state.snapshot(self._model, full)

    def recalibrate(
        self,
        loader: Iterable[Any],
        call: Callable[[nn.Module, Any], Any] | None = None,
    ) -> None:
        """Recompute the statistics of normalisation layers for the average.

        Args:
            loader: batches, all of which are used.
            call: ``call(model, batch)`` runs the model. By default a tensor is passed
                as it is, the first item of a list or tuple, a mapping as keywords.
        """
        if not self.has_average:
            raise RuntimeError(
                "There is no average to recalibrate yet; the live weights, which are "
                "shown until then, keep their statistics."
            )
        with self.averaged() as model:
            tracked = {id(slot.tensor) for slot in self._shadow.slots}
            recalibration.recalibrate(model, loader, call, tracked)

    def _refuse_while_shown(self, call: str) -> None:
        if stage.is_open(self._model):
            raise RuntimeError(
                f"{call} inside averaged() would mix the averaged and the live "
                "weights; leave the with block first."
            )

    def refresh(self) -> None:
        """Look at the model again: new tensors start at their present values."""
        self._refuse_while_shown("refresh()")
        self._structure.look()
        for shadow in self._shadows().values():
            shadow.renew(self._structure.slots)

    def _check_structure(self) -> None:
        if not stage.is_open(self._model) and self._structure.check():
            self.refresh()

    def _follow_until_first_step(self) -> None:
        """Until training begins the average is the model, also if it is loaded late."""
        if not self._has_started and not stage.is_open(self._model):
            for shadow in self._shadows().values():
                shadow.read_if_loaded_()
