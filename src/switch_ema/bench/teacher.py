"""A teacher: the model run with averaged weights, which makes the student's targets.

In MoCo and BYOL the averaged model takes part in training: it computes the targets. The
average is the one that the comparison's method keeps. Plain training has none, so the
student is its own teacher; EMA gives the usual momentum teacher; with Switch EMA the
student continues from its teacher's weights at every switch.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from switch_ema.averaging.averager import Averager
from switch_ema.averaging.model.names import plain_name, unwrap
from switch_ema.averaging.schedules.decay import cosine
from switch_ema.bench.method_names import CONTROL, PLAIN
from switch_ema.bench.methods import Method


@dataclass(frozen=True)
class Teacher:
    """Runs a model, or a part of it, with the averaged weights and no gradient.

    The model is not copied: its modules run with the shadow's tensors, in the mode that
    the student is in. So batch normalisation uses the batch's statistics in training;
    its running statistics are updated in copies that are discarded, so that neither the
    shadow nor the student changes.
    """

    model: nn.Module
    averager: Averager | None = None
    """Keeps the average that teaches; without one, or before its first step, the
    student's own weights are used."""

    @torch.no_grad()
    def __call__(self, *inputs: Any, part: str = "") -> Any:
        """Run the module named ``part``, or the whole model."""
        student = unwrap(self.model)
        module = student.get_submodule(part)
        prefix = f"{plain_name(student, part)}." if part else ""
        averages = {} if self.averager is None else self.averager.averaged_tensors()

        def average_of(name: str, live: Tensor) -> Tensor:
            return averages.get(prefix + plain_name(module, name), live).to(live)

        tensors = {name: average_of(name, p) for name, p in module.named_parameters()}
        for name, buffer in module.named_buffers():
            tensors[name] = average_of(name, buffer).clone()
        return functional_call(module, tensors, inputs)


def as_teacher(
    method: Method, *, steps: int, final_decay: float, exclude: tuple[str, ...]
) -> Method:
    """Return an averaging method as it is used for a teacher.

    Args:
        method: The method as the comparison names it.
        steps: Optimizer steps of the whole training.
        final_decay: Final value of a decay that is given as a number: it rises to it
            along a cosine over the training, unless the method has an option
            ``warmup``.
        exclude: Names of tensors that are not weights, which are not averaged.
    """
    options = dict(method.spec.options)
    if method.name in (PLAIN, CONTROL):
        return method
    decay = options.get("decay")
    if isinstance(decay, float) and "warmup" not in options:
        final = max(decay, final_decay)
        options["decay"] = cosine(decay, steps=steps, final=final)
    if exclude:
        given = options.get("exclude") or ()
        options["exclude"] = [*exclude, *([given] if isinstance(given, str) else given)]
    return replace(method, spec=replace(method.spec, options=options))
