"""Watches anybody's average during training and warns when it leaves its rule.

Before an optimizer step the model holds the live weights ``L`` and the average is up to
date with them. Between two such moments an average with decay ``d`` goes from ``S`` to

    S + (1 - d) (L - S),

so a few numbers of a few tensors tell the decay of a single step exactly, and whether
all tensors have the same one.
"""

import math
import warnings
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any, Union

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from switch_ema._checks import check_count, check_range
from switch_ema.averaging.averager import Averager
from switch_ema.averaging.distributed.fsdp import local_part
from switch_ema.averaging.model.names import plain_name, unwrap
from switch_ema.doctor.findings import Finding, found
from switch_ema.doctor.holdings import is_statistic

Average = Union[nn.Module, Callable[[], Mapping[str, Tensor]], Any]
"""A module, a function that returns a state dict, or an average of a library."""

_TENSORS, _NUMBERS = 8, 1024
"""How many tensors are followed, and how many numbers of each."""
_DENSE = 20
"""First checks, which follow each other closely."""
_STILL = 20
"""Checks in a row without movement after which an average counts as frozen."""
_PRECISE = (torch.float32, torch.float64)
"""Dtypes in which one step tells the decay; half precision rounds too coarsely."""


def audit(
    model: nn.Module,
    optimizer: Optimizer,
    average: Average,
    *,
    decay: float | None = None,
    every: int = 50,
) -> "Audit":
    """Follow an average during training, and warn at the first step that is wrong.

    Args:
        model: the model that the optimizer trains.
        optimizer: its steps are the moments of the checks.
        average: an averager of switch-ema; torch's ``AveragedModel``; timm's
            ``ModelEma``; the averages of ema-pytorch, torch_ema, diffusers and
            MMEngine; any module with the model's names; or a function that returns a
            state dict with the averaged tensors themselves.
        decay: the declared decay in (0, 1), once any warm-up is over; None: unknown,
            which leaves out the comparison with it.
        every: steps between two checks, after the first 20.

    Returns:
        The audit; ``report()`` lists its findings, ``detach()`` ends it.

    >>> import torch, switch_ema
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> ema = switch_ema.EMA(model, optimizer)
    >>> audit = switch_ema.audit(model, optimizer, ema)
    >>> for _ in range(10):
    ...     model(torch.ones(1, 2)).sum().backward()
    ...     optimizer.step()
    >>> audit.report()
    []
    """
    return Audit(model, optimizer, average, decay=decay, every=every)


class Audit:
    """A running audit; see :func:`audit`."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        average: Average,
        *,
        decay: float | None = None,
        every: int = 50,
    ) -> None:
        if decay is not None:
            check_range("decay", decay, 0, 1)
        self._decay, self._every = decay, check_count("every", every)
        self._live = _parameters(model)
        self._averaged = _reader(average, model)
        self._switches = isinstance(average, Averager) and average.active
        names = [name for name in self._live if name in self._averaged()]
        self._names = _spread(names, _TENSORS)
        self._findings: dict[str, Finding] = {}
        self._steps, self._checks, self._still = 0, 0, 0
        self._before: list[Tensor] | None = None
        self.decays: list[float] = []
        """Decays in force at the checks, as far as the average moved."""
        if len(names) < len(self._live):
            missing = [name for name in self._live if name not in names]
            text = f"{len(missing)} of {len(self._live)} parameters are not in it"
            self._tell(found("names", text, missing))
        self._hook = optimizer.register_step_pre_hook(lambda *_: self._before_step())

    def report(self) -> list[Finding]:
        """Return the findings so far, in the order in which they were made."""
        return list(self._findings.values())

    def detach(self) -> None:
        """Stop watching."""
        self._hook.remove()

    def _before_step(self) -> None:
        self._steps += 1
        if self._before is not None:
            before, self._before = self._before, None
            self._check(before)
        is_due = self._steps <= _DENSE or self._steps % self._every == 0
        if is_due and self._names:
            self._before = self._samples(self._averaged())

    def _samples(self, tensors: Mapping[str, Tensor]) -> list[Tensor]:
        """Copy numbers of the followed tensors to the CPU, all at once."""
        some = [_first_numbers(local_part(tensors[name])) for name in self._names]
        joined = torch.cat([each.to(some[0].device) for each in some]).cpu().double()
        return list(torch.split(joined, [each.numel() for each in some]))

    def _check(self, before: list[Tensor]) -> None:
        """Compare the movement of the average in one step with its rule."""
        self._checks += 1
        shares: dict[str, tuple[float, float]] = {}
        is_due, unchanged = False, []
        averaged = self._averaged()
        now = zip(self._samples(averaged), self._samples(self._live), strict=True)
        for name, old, (new, live) in zip(self._names, before, now, strict=True):
            if not (torch.isfinite(new).all() and torch.isfinite(live).all()):
                self._tell(found("not finite", f"at step {self._steps}", [name]))
                return
            way, moved = live - old, new - old
            if not way.any():
                continue
            is_due = True
            if not moved.any():
                continue
            share = float(moved @ way / (way @ way))
            rest = float((moved - share * way).norm() / moved.norm())
            dtype = averaged[name].dtype
            unit = torch.finfo(dtype).eps * old.abs()
            if dtype in _PRECISE:
                shares[name] = share, 2 * float(unit.norm() / way.norm())
                if rest > 0.01 + 4 * float(unit.norm() / moved.norm()):
                    text = f"{rest:.0%} of a step's movement leads elsewhere"
                    self._tell(found("not an average", text, [name]))
            else:
                due = way.abs() > 2 * unit
                unchanged.append(float((due & (moved == 0)).sum() / due.sum().clamp(1)))
        self._judge(shares, is_due, unchanged)

    def _judge(
        self,
        shares: Mapping[str, tuple[float, float]],
        is_due: bool,
        unchanged: list[float],
    ) -> None:
        """Judge the shares of the way that a step went, with their rounding errors."""
        if unchanged:
            if median(unchanged) > 0.9:
                text = (
                    f"{median(unchanged):.0%} of the numbers did not change in a step"
                )
                self._tell(found("stalled", text))
            return
        if not shares:
            self._still += is_due
            if self._still == _STILL:
                text = f"it did not move in {_STILL} of {self._checks} checks"
                self._tell(found("frozen", text))
            return
        self._still = 0
        exact = {
            n: own for n, (own, error) in shares.items() if error < 0.02 * abs(own)
        }
        if not exact:
            return
        share = median(exact.values())
        odd = [n for n, own in exact.items() if abs(own - share) > 0.1 * abs(share)]
        if odd:
            text = f"{1 - exact[odd[0]]:.6g} instead of {1 - share:.6g}"
            self._tell(found("uneven decay", text, odd))
        self._judge_decay(share)
        self.decays.append(1 - share)

    def _judge_decay(self, share: float) -> None:
        """Judge the decay of a step: its sign, its size, and jumps."""
        if share < -1e-3:
            text = f"a step moved it by {-share:.2g} of the distance in between"
            self._tell(found("moving away", text))
        elif share > 1 - 1e-6 and self._switches:
            return  # the live weights have become the average
        elif len(self.decays) > 3 and share > 1 - 1e-4 and self.decays[-1] > 0.5:
            text = f"at step {self._steps} it became equal to the live weights"
            self._tell(found("restarted", text))
        elif self._steps > 100 and share > 0.5:
            name = "equal to live" if share > 1 - 1e-6 else "inverted decay"
            text = f"at step {self._steps} its decay was {1 - share:.4g}"
            self._tell(found(name, text))
        elif self._decay is not None and self._is_off(share):
            text = f"{1 - share:.6g} in force, {self._decay:g} declared"
            self._tell(found("other decay", text))

    def _is_off(self, share: float) -> bool:
        """Whether the decay is not the declared one; a warm-up may make it smaller."""
        assert self._decay is not None
        if share <= 0 or self._decay == 1:
            return False
        ratio = math.log1p(-min(share, 1 - 1e-12)) / math.log(self._decay)
        warming = self._steps * (1 - self._decay) < 10
        return ratio < 0.9 or (ratio > 1.1 and not warming)

    def _tell(self, finding: Finding) -> None:
        """Warn about the first finding of each kind."""
        if finding.fault.name not in self._findings:
            self._findings[finding.fault.name] = finding
            warnings.warn(
                f"switch_ema.audit: {finding}. {finding.fault.fix}", stacklevel=2
            )


def _parameters(model: nn.Module) -> dict[str, Tensor]:
    return {
        plain_name(model, name): parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and parameter.is_floating_point()
    }


def _first_numbers(tensor: Tensor) -> Tensor:
    """Return a view of the first numbers, without a copy of a strided tensor."""
    tensor = tensor.detach()
    while tensor.dim() > 1 and tensor.numel() > _NUMBERS:
        rows = _NUMBERS // tensor[0].numel()
        tensor = tensor[:rows] if rows > 1 else tensor[0]
    return tensor.reshape(-1)[:_NUMBERS]


def _spread(names: list[str], count: int) -> list[str]:
    """Choose names that are spread over the model.

    >>> _spread(list("abcdefghij"), 4)
    ['a', 'd', 'g', 'j']
    """
    if len(names) <= count:
        return names
    return [names[round(i * (len(names) - 1) / (count - 1))] for i in range(count)]


def _reader(average: Average, model: nn.Module) -> Callable[[], Mapping[str, Tensor]]:
    """Return a function that returns the averaged tensors by plain names."""
    if isinstance(average, Averager):
        return average.averaged_tensors
    if isinstance(getattr(average, "shadow_params", None), list):
        names = list(_parameters(model))
        listed: Any = average
        return lambda: dict(zip(names, listed.shadow_params, strict=True))
    inner = getattr(average, "ema_model", average)
    if isinstance(inner, nn.Module):
        inner = unwrap(getattr(inner, "module", inner))
        known = dict(inner.named_parameters())
        return lambda: known
    if callable(average):
        return lambda: {
            name: value for name, value in average().items() if not is_statistic(name)
        }
    raise ValueError(
        "average must be a module, an average of a known library, or a function that "
        f"returns a state dict, got {type(average).__name__}."
    )
