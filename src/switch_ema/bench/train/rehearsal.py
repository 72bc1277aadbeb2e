"""Rehearses a training: a few steps at full size, timed, stored and resumed.

Everything is real but the length: the cell's data, network, optimizer, averagers and
schedule, the training loop and its checkpoints. The first epoch and the last one are
both begun, so that what happens only at the end of a training fails here, too.
"""

import gc
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count

from switch_ema.bench.errors import UsageError
from switch_ema.bench.loaders import feed
from switch_ema.bench.plan.cells import Cell
from switch_ema.bench.task import Loader
from switch_ema.bench.train.checkpoints import checkpoint_path, save_checkpoint
from switch_ema.bench.train.context import RunContext, using_threads
from switch_ema.bench.train.loop import Training
from switch_ema.bench.train.memory import peak_mb, state_mb, storages

_INPUT_SECONDS = 20.0
"""Longest measurement of the input pipeline."""
_INPUT_BATCHES = 8
"""Batches drawn to measure it, if the data has as many."""


@dataclass(frozen=True, kw_only=True)
class RehearsalLimits:
    """How much of a training to rehearse."""

    steps: int = 3
    """Optimizer steps in the first and in the last epoch."""
    evaluated: int = 8
    """Examples per evaluation."""


@dataclass(frozen=True, kw_only=True)
class CellRehearsal:
    """Measurements of a rehearsed cell. An example is an image, a clip, or a word."""

    network: str
    """The network with its number of parameters."""
    device: str
    """cpu, or the name of the GPU."""
    batch: int
    """Examples per optimizer step."""
    start_seconds: float
    """Data, network and optimizer, until the first batch is asked for."""
    step_seconds: float
    """An optimizer step, without waiting for its batches."""
    loop_seconds: float
    """An optimizer step including the wait for its batches."""
    input_rate: float
    """Examples per second that the input pipeline delivers alone."""
    evaluated: int | None
    """Examples per evaluation; None: the whole evaluation."""
    evaluate_seconds: float
    """An evaluation of one method, after the first epoch."""
    last_seconds: float
    """The same after the last epoch."""
    checkpoint_mb: float
    save_seconds: float
    resume_seconds: float
    state_mb: float
    """Weights, gradients, optimizer state and averages."""
    activations_mb: float
    """Tensors that the forward pass keeps for the backward pass, per example."""
    flops: float
    """Floating-point operations of the forward and backward passes, per example."""
    process_mb: float
    """Peak memory of the process."""
    device_mb: float | None
    """Peak memory of the GPU; None on a CPU."""
    values: dict[str, float] = field(default_factory=dict)
    """Metrics of the cell's first method at the end."""


def rehearse_cell(
    cell: Cell, context: RunContext, limits: RehearsalLimits
) -> CellRehearsal:
    """Begin the first epoch, store and load a checkpoint, and begin the last epoch."""
    with using_threads(context.threads):
        weights, seconds = _begin_and_save(cell, context, limits)
        gc.collect()  # one training at a time, for the peak of the memory
        resumed = RehearsedTraining(cell, context, limits)
        seconds["resume_seconds"] = _timed(resumed._resume)
        if resumed.epoch != 1 or resumed._digest(resumed.model) != weights:
            raise UsageError(
                f"{cell}: the checkpoint has other weights than the training that "
                "wrote it."
            )
        last = resumed.rehearse_epoch(cell.recipe.epochs - 1)
        # Tasks that are evaluated rarely have no evaluation after the first epoch.
        seconds |= {
            "evaluate_seconds": seconds["evaluate_seconds"] or last,
            "last_seconds": last,
        }
        return resumed.measured(**seconds)


def _begin_and_save(
    cell: Cell, context: RunContext, limits: RehearsalLimits
) -> tuple[list[str], dict[str, float]]:
    """Begin the first epoch; return digests of the stored weights, and times."""
    started = time.perf_counter()
    training = RehearsedTraining(cell, context, limits)
    seconds = {"start_seconds": time.perf_counter() - started}
    seconds["evaluate_seconds"] = training.rehearse_epoch(0)
    seconds["save_seconds"] = _timed(partial(save_checkpoint, training))
    return training._digest(training.model), seconds


class RehearsedTraining(Training):
    """Trains a few steps of a cell and measures them."""

    def __init__(
        self, cell: Cell, context: RunContext, limits: RehearsalLimits
    ) -> None:
        self.limits = limits
        self.watch = _Stopwatch()
        self.seen = _Inspection()
        super().__init__(cell, context)
        self.evaluated = self.tested.shorten_evaluation(limits.evaluated)
        if self.accelerator.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.accelerator.device)

    def _feed(self, loader: Loader) -> Iterator[Any]:
        count = self.limits.steps * self.cell.recipe.accumulate
        self.watch = _Stopwatch()
        return self.watch.timed(islice(super()._feed(loader), count))

    def _back_propagate(self, batch: Any, batches: int, *, is_last: bool) -> Tensor:
        if len(self.watch.steps) >= self.cell.recipe.accumulate:  # the first step only
            return super()._back_propagate(batch, batches, is_last=is_last)
        with self.seen.watching(self.model.parameters()), _countable(self.model):
            return super()._back_propagate(batch, batches, is_last=is_last)

    def rehearse_epoch(self, epoch: int) -> float:
        """Begin an epoch and evaluate; return the seconds per evaluated method."""
        self.epoch = epoch
        self._train_epoch()
        before = self.result.evaluate_seconds
        self._evaluate()
        self.epoch += 1
        return (self.result.evaluate_seconds - before) / len(self.averagers)

    def measured(self, **seconds: float) -> CellRehearsal:
        """Return all measurements, after the last epoch."""
        accumulate = self.cell.recipe.accumulate
        examples = self.watch.examples * accumulate
        device = self.accelerator.device
        on_gpu = device.type == "cuda"
        peak = torch.cuda.max_memory_allocated(device) / 1e6 if on_gpu else None
        values = self.result.values[self.cell.methods[0]]
        return CellRehearsal(
            network=self.result.trained["Network"],
            device=torch.cuda.get_device_name(device) if on_gpu else "cpu",
            batch=examples,
            step_seconds=self.watch.step_seconds(accumulate, with_waits=False),
            loop_seconds=self.watch.step_seconds(accumulate, with_waits=True),
            input_rate=_input_rate(feed(self._make_loader(1), device)),
            evaluated=self.evaluated,
            checkpoint_mb=checkpoint_path(self.context.folder, self.cell).stat().st_size
            / 1e6,
            state_mb=state_mb(self.model, [self.optimizer], self.averagers.values()),
            activations_mb=self.seen.kept_mb / self.watch.examples,
            flops=self.seen.flops / examples,
            process_mb=peak_mb(torch.device("cpu")),
            device_mb=peak,
            values={name: epochs[-1][0] for name, epochs in values.items()},
            **seconds,
        )


class _Stopwatch:
    """Measures the time between batches."""

    def __init__(self) -> None:
        self.waits: list[float] = []
        self.steps: list[float] = []
        self.examples = 0

    def timed(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield batches, and note how long each takes to come, and until the next."""
        started = time.perf_counter()
        for batch in batches:
            self.waits.append(time.perf_counter() - started)
            self.examples = examples_in(batch)
            started = time.perf_counter()
            yield batch
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            self.steps.append(time.perf_counter() - started)
            started = time.perf_counter()

    def step_seconds(self, accumulate: int, *, with_waits: bool) -> float:
        """Return the median time of an optimizer step, leaving out the first one.

        The first one includes counting operations, and starting to read the data.
        """
        each = [
            step + wait * with_waits
            for step, wait in zip(self.steps, self.waits, strict=True)
        ]
        whole = [
            sum(each[begin : begin + accumulate])
            for begin in range(0, len(each), accumulate)
        ]
        return statistics.median(whole[1:] or whole)


class _Inspection:
    """Operations and memory of the forward and backward passes of a step."""

    def __init__(self) -> None:
        self.flops = 0
        """Of all passes; SAM's step has two for each batch."""
        self.kept_mb = 0.0
        """Of the largest pass."""

    @contextmanager
    def watching(self, parameters: Iterable[Tensor]) -> Iterator[None]:
        """Add what happens inside the context."""
        weights = {address for address, _ in storages(parameters)}
        kept: dict[int, int] = {}

        def keep(tensor: Tensor) -> Tensor:
            kept.update(storages([tensor.detach()]))
            return tensor

        hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
        formulas = {torch.ops.aten.convolution_backward: _convolution_backward}
        counter = FlopCounterMode(display=False, custom_mapping=formulas)
        with counter, hooks:
            yield
        sizes = (size for address, size in kept.items() if address not in weights)
        self.kept_mb = max(self.kept_mb, sum(sizes) / 1e6)
        self.flops += counter.get_total_flops()


def _convolution_backward(
    outputs: Sequence[int],
    inputs: Sequence[int],
    weights: Sequence[int],
    *rest: Any,
    **_: Any,
) -> int:
    """Count the gradients of inputs and weights, each like the forward pass.

    Torch's own formula counts those of grouped weights as if there were one group.
    """
    transposed, is_needed = rest[4], rest[7]
    once = conv_flop_count(
        list(inputs), list(weights), list(outputs), transposed=transposed
    )
    return once * sum(map(bool, is_needed[:2]))


@contextmanager
def _countable(model: nn.Module) -> Iterator[None]:
    """Run recurrent layers as products of matrices, whose operations are counted.

    Fused kernels hide theirs.
    """
    if not any(isinstance(module, nn.RNNBase) for module in model.modules()):
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a flag of Intel's GPUs is set along
        with (
            torch.backends.mkldnn.flags(enabled=False),
            torch.backends.cudnn.flags(enabled=False),
        ):
            yield


def examples_in(batch: Any) -> int:
    """Count the examples of a batch: images, texts, or the words of a language model.

    >>> examples_in((torch.zeros(4, 3, 8, 8), torch.zeros(4)))
    4
    >>> examples_in((torch.zeros(4, 16), torch.zeros(4, 16, dtype=torch.long)))
    64
    >>> examples_in(([torch.zeros(3, 8, 9), torch.zeros(3, 7, 8)], [{}, {}]))
    2
    """
    first = batch
    while isinstance(first, tuple):
        first = first[0]
    targets = batch[1] if isinstance(batch, tuple) and len(batch) > 1 else None
    if isinstance(targets, Tensor) and isinstance(first, Tensor) and targets.ndim == 2:
        is_text = targets.dtype == torch.long and targets.shape == first.shape
        return targets.numel() if is_text else len(first)
    return len(first)


def _input_rate(batches: Iterator[Any]) -> float:
    """Return the examples per second of a loader, without the time to start it."""
    times, counts = [time.perf_counter()], []
    for batch in islice(batches, _INPUT_BATCHES):
        times.append(time.perf_counter())
        counts.append(examples_in(batch))
        if times[-1] - times[0] > _INPUT_SECONDS:
            break
    first = 1 if len(counts) > 1 else 0
    return sum(counts[first:]) / max(times[-1] - times[first], 1e-9)


def _timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started
