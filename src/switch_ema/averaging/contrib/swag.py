"""A Gaussian around the mean of the weights: SWAG (Maddox et al., 2019)."""

import hashlib
import math
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from switch_ema._checks import check_count, check_positive
from switch_ema.averaging.distributed.fsdp import shard_name
from switch_ema.averaging.methods.swa import SWA
from switch_ema.averaging.model.slots import Filter
from switch_ema.averaging.schedules.intervals import ScheduleLike
from switch_ema.averaging.shadow.shadow import Shadow
from switch_ema.averaging.shadow.state import (
    StateMismatch,
    check_shadow_state,
    load_shadow_state,
    shadow_state,
)
from switch_ema.averaging.shadow.storage import Buffers
from switch_ema.averaging.step.hooks import Optimizers
from switch_ema.averaging.step.rounds import Count
from switch_ema.averaging.view.stage import Block


class SWAG(SWA):
    """SWA with a Gaussian around the mean to sample from.

    Beside the mean it keeps the variance of each weight and the last ``rank``
    deviations ``D`` of the weights from the mean at that time. With standard normal
    ``z`` for each weight and ``y`` for each deviation, a sample is::

        mean + sqrt(variance / 2) * z + D y / sqrt(2 * (rank - 1))

    ``averaged()`` shows the mean; :meth:`sampled` and :meth:`samples` show samples, to
    average their predictions. It takes ``rank + 2`` times the memory of an EMA.

    Args:
        model: see :class:`Averager`.
        optimizer: see :class:`Averager`.
        start: averaging starts after this, in the unit of ``every``.
        every: epochs between the weights averaged, ``Steps(n)``, or a callable of the
            number of finished epochs.
        rank: the number of deviations to keep, at least 2.
        buffers: average "statistics", or "average" or "copy" all float buffers.
        dtype: the dtype of averaged parameters; None: the model's, at least float32.
        device: the device of the shadow; None: the model's.
        include: names, globs or a predicate: average only these tensors.
        exclude: names, globs or a predicate: do not average these tensors.
        flat: move the model into one block of memory for the fastest update.
        steps_per_epoch: steps per epoch, if needed before the first epoch ends.
        count: which steps count if there are several optimizers.

    >>> swag = SWAG(nn.Linear(2, 1), rank=2)
    >>> for _ in range(3):
    ...     _ = swag.end_epoch()
    >>> [tuple(model.weight.shape) for model in swag.samples(2, seed=0)]
    [(1, 2), (1, 2)]
    """

    name = "swag"
    display_name = "SWAG"
    colour = 3

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizers = None,
        *,
        start: float = 0,
        every: ScheduleLike = 1,
        rank: int = 20,
        buffers: Buffers = "statistics",
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        include: Filter = None,
        exclude: Filter = None,
        flat: bool = False,
        steps_per_epoch: int | None = None,
        count: Count = "round",
    ) -> None:
        self._deviations: deque[Shadow] = deque(maxlen=check_count("rank", rank, 2))
        super().__init__(
            model,
            optimizer,
            start=start,
            every=every,
            buffers=buffers,
            dtype=dtype,
            device=device,
            include=include,
            exclude=exclude,
            flat=flat,
            steps_per_epoch=steps_per_epoch,
            count=count,
        )
        self._variance = self._new_shadow()  # meaningless before the first weights

    def sampled(self, seed: int, *, scale: float = 1.0) -> Block[nn.Module]:
        """Hold a sample in the model during a ``with`` block.

        Recalibrate the statistics of batch norm for each sample.

        Args:
            seed: the seed of the sample.
            scale: factor of the covariance.
        """
        check_positive("scale", scale)
        if not self.has_average:
            raise RuntimeError("There is nothing to sample from yet.")
        return Block(self._stage, lambda: self._sample(seed, scale), self._wrapped)

    def samples(
        self, count: int, *, seed: int = 0, scale: float = 1.0
    ) -> Iterator[nn.Module]:
        """Yield the model holding each sample in turn.

        Args:
            count: the number of samples.
            seed: the seed of the first sample; the others take the next seeds.
            scale: factor of the covariance, as for :meth:`sampled`.
        """
        for index in range(check_count("count", count)):
            with self.sampled(seed + index, scale=scale) as model:
                yield model

    @torch.no_grad()
    def _sample(self, seed: int, scale: float) -> Shadow:
        self._check_structure()
        sample = self._new_shadow()
        sample.copy_(self._shadow)
        device = sample.tensors[0].device if sample.tensors else None
        generator = torch.Generator(device or "cpu").manual_seed(seed)
        generators = {"": generator}
        rank = len(self._deviations)
        shares = torch.randn(rank, generator=generator, device=device)
        for i in self._shadow.averaged_parameters:
            target = sample.tensors[i]
            # Shards need noise of their own; their sizes must not shift that of others.
            shard = shard_name(sample.slots[i].tensor)
            if shard not in generators:
                generators[shard] = torch.Generator(generator.device)
                generators[shard].manual_seed(_mixed(seed, shard))
            own = generators[shard]
            noise = torch.empty_like(target).normal_(generator=own)
            variance = self._variance.tensors[i].clamp(min=0)
            target.add_(noise * variance.sqrt(), alpha=math.sqrt(scale / 2))
            if rank > 1:
                factor = math.sqrt(scale / (2 * (rank - 1)))
                for share, deviation in zip(shares, self._deviations, strict=True):
                    target.add_(deviation.tensors[i] * (factor * share.to(target)))
        return sample

    def refresh(self) -> None:
        """Re-read the model's structure; new tensors start at their current values."""
        super().refresh()
        for deviation in self._deviations:
            self._renew(deviation)

    @torch.no_grad()
    def _renew(self, shadow: Shadow) -> None:
        """New parameters have neither a variance nor deviations yet."""
        new = shadow.renew(self._structure.slots)
        if shadow is not self._shadow:
            for tensor in new:
                tensor.zero_()

    @torch.no_grad()
    def _take(self) -> None:
        """Add a set of weights to the mean, the variance and the deviations.

        ``variance += ((live - old) * (live - new) - variance) / n``, which stays exact
        where the difference of two large squares would not.
        """
        self._shadow.settle()
        old = [
            self._shadow.tensors[i].clone() for i in self._shadow.averaged_parameters
        ]
        super()._take()
        self._shadow.settle()
        deviation = self._new_shadow()
        for i, before in zip(self._shadow.averaged_parameters, old, strict=True):
            live, new = deviation.tensors[i].clone(), self._shadow.tensors[i]
            variance = self._variance.tensors[i]
            if self._count == 1:
                variance.zero_()
            else:
                product = (live - before) * (live - new)
                variance.add_(product.sub_(variance), alpha=1 / self._count)
            deviation.tensors[i].copy_(live - new)
        self._deviations.append(deviation)

    def _shadows(self) -> dict[str, Shadow]:
        return {"shadow": self._shadow, "shadow_variance": self._variance}

    def _extra_state(self) -> dict[str, Any]:
        kept = [shadow_state(deviation) for deviation in self._deviations]
        return super()._extra_state() | {"snapshots": kept}

    def _check_extra_state(self, state: Mapping[str, Any]) -> None:
        kept, most = state["snapshots"], self._deviations.maxlen or 0
        if not isinstance(kept, (list, tuple)) or len(kept) > most:
            raise StateMismatch(
                f"The state's snapshots are not a list of at most {most}."
            )
        for one in kept:
            check_shadow_state(self._shadow, one, "snapshots")
        super()._check_extra_state(state)

    def _load_extra_state(self, state: Mapping[str, Any]) -> None:
        super()._load_extra_state(state)
        self._deviations.clear()
        for one in state["snapshots"]:
            self._deviations.append(self._new_shadow())
            load_shadow_state(self._deviations[-1], one)


def _mixed(seed: int, name: str) -> int:
    """Return a seed for each pair of a seed and a name."""
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    return int.from_bytes(digest[:7], "big")
