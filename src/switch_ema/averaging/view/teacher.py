"""A teacher: runs the model with averaged weights, without exchanging them."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from switch_ema.averaging.distributed.fsdp import is_sharder
from switch_ema.averaging.model.names import plain_name, unwrap


def _nothing() -> Mapping[str, Tensor]:
    return {}


class Teacher:
    """Runs a model, or a part of it, with averaged weights and no gradient.

    The model is neither copied nor changed: its modules run with the shadow's tensors,
    so student and teacher can be called in turn within one step. In training mode,
    batch norm uses batch statistics and updates discarded copies of its running
    statistics, so neither shadow nor student changes. Tensors that are not averaged are
    the student's.

    Args:
        model: the student.
        averages: returns the averaged tensors by plain name; by default none, which
            makes the student its own teacher.
        training: whether modules run in training mode (dropout, batch statistics);
            None uses the student's mode.

    >>> from switch_ema import EMA
    >>> student = nn.Linear(2, 1)
    >>> teacher = EMA(student).teacher()
    >>> x = torch.ones(1, 2)
    >>> torch.equal(teacher(x), student(x))  # equal before the first step
    True
    """

    def __init__(
        self,
        model: nn.Module,
        averages: Callable[[], Mapping[str, Tensor]] = _nothing,
        *,
        training: bool | None = None,
    ) -> None:
        self._model = unwrap(model)
        self._averages = averages
        self._training = training

    def __repr__(self) -> str:
        """Return the kind of the model and the mode in which it runs."""
        return f"Teacher({type(self._model).__name__}, training={self._training})"

    @torch.no_grad()
    def __call__(self, *inputs: Any, part: str = "", **keywords: Any) -> Any:
        """Run the module named ``part``, or the whole model.

        Raises:
            TypeError: the model is sharded by FSDP2 or is a TorchScript module; both
                always run with their own weights.
        """
        if isinstance(self._model, torch.jit.ScriptModule):
            raise TypeError(
                "A TorchScript module always runs with its own weights; run the "
                "average inside averaged() instead."
            )
        module = self._model.get_submodule(part)
        if any(is_sharder(inner) for inner in self._model.modules()):
            raise TypeError(
                "A model sharded by FSDP2 always gathers its own weights; run the "
                "average inside averaged() instead."
            )
        prefix = f"{plain_name(self._model, part)}." if part else ""
        averages = self._averages()

        def average_of(name: str, live: Tensor) -> Tensor:
            average = averages.get(prefix + plain_name(module, name), live)
            return average.to(live.device, live.dtype)

        tensors = {name: average_of(name, p) for name, p in module.named_parameters()}
        for name, buffer in module.named_buffers():
            tensors[name] = average_of(name, buffer).clone()
        with _mode(module, self._training):
            return functional_call(module, tensors, inputs, keywords)


@contextmanager
def _mode(module: nn.Module, training: bool | None) -> Iterator[None]:
    """Set the mode of all modules, and restore each module's own mode."""
    if training is None:
        yield
        return
    others = [inner for inner in module.modules() if inner.training != training]
    try:
        for inner in others:
            inner.training = training
        yield
    finally:
        for inner in others:
            inner.training = not training
