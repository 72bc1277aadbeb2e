"""A teacher: the model run with averaged weights, without exchanging them."""

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

    The model is not copied, and its weights stay where they are: its modules run with
    the shadow's tensors. So a student and its teacher can be called in turn within one
    step. Batch normalisation in training uses the batch's statistics; running
    statistics are updated in copies that are discarded, so that neither the shadow nor
    the student changes. What is not averaged is the student's.

    Args:
        model: the student.
        averages: returns the averaged tensors by plain name; by default there are none,
            and the student is its own teacher.
        training: whether modules run in training mode (dropout, batch statistics);
            None is the mode that the student is in.

    >>> from switch_ema import EMA
    >>> student = nn.Linear(2, 1)
    >>> teacher = EMA(student).teacher()
    >>> x = torch.ones(1, 2)
    >>> torch.equal(teacher(x), student(x))  # there was no step yet
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

    @torch.no_grad()
    def __call__(self, *inputs: Any, part: str = "", **keywords: Any) -> Any:
        """Run the module named ``part``, or the whole model.

        Raises:
            TypeError: the model is sharded by FSDP2, which gathers its own weights, or
                is a TorchScript module, which has its own.
        """
        if isinstance(self._model, torch.jit.ScriptModule):
            raise TypeError(
                "A TorchScript module runs with its own weights only; run its average "
                "inside averaged()."
            )
        module = self._model.get_submodule(part)
        if any(is_sharder(inner) for inner in self._model.modules()):
            raise TypeError(
                "A model that is sharded by FSDP2 gathers its own weights; run its "
                "average inside averaged()."
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
    """Run the modules in one mode, and leave each in its own."""
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
