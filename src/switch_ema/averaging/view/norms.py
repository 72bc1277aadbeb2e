"""Notices batch norm that runs in training mode while a model holds an average.

Such a forward pass moves the running statistics of the average towards those of the
evaluation's batches; a switch then writes them into the live model.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from switch_ema.averaging._torch import buffers_of, version_of
from switch_ema.averaging.view.stage import Shown

_COUNTER = "num_batches_tracked"


def counting_layers(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """List the layers that count the batches in their running statistics, by name."""
    return [
        (name, module)
        for name, module in model.named_modules()
        if buffers_of(module).get(_COUNTER) is not None
    ]


class Watched:
    """Shows an average, and notices layers that gather statistics meanwhile.

    The layers count their batches. Reading the counts would wait for an accelerator, so
    they are read only if autograd's version of a counter shows that it was written.

    Args:
        shown: what to show; None is the live weights.
        layers: from :func:`counting_layers`.
    """

    def __init__(
        self, shown: Shown | None, layers: Sequence[tuple[str, nn.Module]]
    ) -> None:
        self._shown, self._layers = shown, layers
        self._before: list[tuple[Tensor, int]] = []
        self._found: str | None = None

    def take_found(self) -> str | None:
        """Return the name of a layer that was noticed, once."""
        found, self._found = self._found, None
        return found

    def swap_in(self) -> None:
        """Put the average into the model, and record the counts."""
        if self._shown is not None:
            self._shown.swap_in()
        try:
            self._before = _record([_counter(layer) for _, layer in self._layers])
        except BaseException:
            self.swap_out()
            raise

    def swap_out(self) -> None:
        """Compare the counts, and put the live weights back."""
        before, self._before = self._before, []
        for (name, layer), (count, version) in zip(self._layers, before, strict=False):
            if self._found is None and _has_gathered(layer, count, version):
                self._found = name or type(layer).__name__
        if self._shown is not None:
            self._shown.swap_out()


def _counter(layer: nn.Module) -> Tensor | None:
    counter: Tensor | None = buffers_of(layer).get(_COUNTER)
    return counter


@torch.inference_mode(False)
@torch.no_grad()
def _record(counters: list[Tensor | None]) -> list[tuple[Tensor, int]]:
    """Return a copy and the version of each counter; one call copies a device's."""
    kept = [torch.empty(0) if one is None else one for one in counters]
    versions = [0 if one is None else version_of(one) for one in counters]
    copies = list(kept)
    for kind in {(one.device, one.dtype) for one in kept}:
        places = [i for i, one in enumerate(kept) if (one.device, one.dtype) == kind]
        flat = [kept[i].reshape(-1) for i in places]
        parts = torch.split(torch.cat(flat), [one.numel() for one in flat])
        for i, part in zip(places, parts, strict=True):
            copies[i] = part
    return list(zip(copies, versions, strict=True))


def _has_gathered(layer: nn.Module, before: Tensor, version: int) -> bool:
    """Whether a layer has counted batches, and was not reset to recompute them."""
    now = _counter(layer)
    if not layer.training or now is None or now.numel() != before.numel():
        return False
    writes = version_of(now) - version
    if writes <= 0:
        return False
    # A reset is one more write than there are batches, as in torch's update_bn().
    counts = now.reshape(-1)
    has_counted = (counts > before.to(now.device)) & (counts >= writes)
    return bool(has_counted.all())
