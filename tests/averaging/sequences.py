"""Random sequences of what a user may do with an averager, beside a naive oracle.

The oracle has the weights as dictionaries in float64 and the slow methods of
``methods/reference.py``. It knows nothing of groups, kernels, addresses and hooks; when
copied buffers are taken, and what is followed before the first step, is written down
here once more.
"""

import copy
import pickle
import random
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from switch_ema import EMA, FusedSGD, Steps, constant, count_warmup
from switch_ema.averaging.kernels.native import library
from switch_ema.averaging.methods import reference as slow
from switch_ema.averaging.registry import create_averager
from switch_ema.averaging.schedules.start import as_start
from switch_ema.averaging.schedules.windows import sigma_rel_to_gamma

Weights = dict[str, Tensor]
RATE = 0.5
LENGTH = 14
BFLOAT16_EPS = torch.finfo(torch.bfloat16).eps
NOT_SHOWN = {"lawa": "taken", "bema": "mean", "tail-ema": "mean"}
"""The weights of a method that a look does not use."""
TAKE_START = "ema", "tail-ema"
"""Methods that may begin late; SWA's start is of another kind."""
DTYPES = (None, None, None, torch.float64, torch.bfloat16)
UNITS = 100
"""How many units of rounding the averager may be from the oracle."""
BFLOAT16_UNITS = 8
"""The same for bfloat16; a hundred of its units would hide missed updates."""
OPTIMIZERS = (torch.optim.SGD, partial(torch.optim.SGD, fused=True), FusedSGD)


class Difference(AssertionError):
    """The averager is not where the oracle is."""


class Network(nn.Module):
    """Tied weights, strides, statistics, integers, and buffers that come and go."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.body = nn.Linear(3, 3)
        self.head = nn.Linear(3, 3)
        self.head.weight = self.body.weight
        self.norm = nn.BatchNorm1d(3)
        self.table = nn.Parameter(torch.empty(4, 3).t())
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("cache", torch.zeros(2))
        self.register_buffer("scratch", torch.zeros(2, 2), persistent=False)
        for tensor in (*self.parameters(), *self.buffers()):
            if tensor.is_floating_point():
                tensor.data.copy_(torch.randn(tensor.shape, generator=generator))


FILTERS: tuple[tuple[dict[str, Any], Callable[[str], bool]], ...] = (
    ({}, lambda name: True),
    ({"exclude": "norm"}, lambda name: not name.startswith("norm.")),
    (
        {"exclude": ["*.bias", "scratch"]},
        lambda name: not name.endswith(".bias") and name != "scratch",
    ),
    (
        {"include": ["body", "norm", "cache"]},
        lambda name: name.split(".")[0] in ("body", "norm", "cache"),
    ),
)


@dataclass
class Oracle:
    """What an averager should have."""

    method: slow.Reference
    averaged: set[str]
    copied: Weights
    """Of the tensors that are not averaged, what is shown."""
    is_stale: bool = False
    """Whether the next look takes the copied tensors from the model."""
    has_started: bool = False
    mark: list[float] | None = None
    begin: Weights = field(default_factory=dict)
    """The weights that an average that has not started is of."""
    step_in_epoch: int = 0

    def sets(self, without: str = "") -> Iterator[Weights]:
        """Yield all sets of weights of the method, without differences."""
        for name, value in vars(self.method).items():
            if name not in ("velocity", "roots", without):
                values = value if isinstance(value, list) else [value]
                yield from (v for v in values if isinstance(v, dict))

    def put(self, name: str, value: Tensor) -> None:
        for weights in self.sets():
            weights[name] = value.double().clone()
        velocity = getattr(self.method, "velocity", {})
        if name in velocity:
            velocity[name] = 0 * value.double()

    def drop(self, name: str) -> None:
        for weights in self.sets():
            weights.pop(name, None)
        getattr(self.method, "velocity", {}).pop(name, None)
        getattr(self.method, "parameters", set()).discard(name)
        self.averaged.discard(name)
        self.copied.pop(name, None)


@contextmanager
def kernels(kind: str) -> Iterator[None]:
    """Compute with the kernels in C, or with torch's."""
    before = library.library
    if kind == "torch":
        library.library = lambda dtype: None  # type: ignore[assignment]
    try:
        yield
    finally:
        library.library = before


def run_sequence(
    method: str, kind: str, seed: int, *operations: str, **options: Any
) -> None:
    """Try one sequence; raise Difference, with what was done, where it goes wrong.

    Args:
        method: its name.
        kind: of the kernels.
        seed: draws everything that is not given.
        operations: what to do; by default 14 operations are drawn, and a late start.
        options: ``buffers``, ``flat``, ``dtype`` and ``start`` of the averager.
    """
    with (
        kernels(kind),
        tempfile.TemporaryDirectory() as folder,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        if not operations:
            options = _late_start(method, seed) | options
        sequence = Sequence(method, seed, Path(folder), **options)
        try:
            for name in operations or [sequence.draw() for _ in range(LENGTH)]:
                sequence.operate(name, then_look=not operations)
            sequence.finish()
        except Exception as error:
            raise Difference(
                f"{method}, {kind}, seed {seed}, {sequence.options}: {error!r} after "
                f"{'; '.join(sequence.log)}"
            ) from error


def _late_start(method: str, seed: int) -> dict[str, Any]:
    """Draw a start, where the method takes one; it has random numbers of its own."""
    if method not in TAKE_START:
        return {}
    drawn = random.Random(f"start {method} {seed}")
    return {"start": drawn.choice((0, 0, "3it", Steps(5), 1, "2ep"))}


def _start_of(options: dict[str, Any]) -> dict[str, int]:
    """Return what a start means to the references."""
    start = as_start(options.get("start", 0))
    if start is None:
        return {}
    unit = {"it": "start_steps", "ep": "start_epochs"}[start.unit]
    return {unit: int(start.amount)}


class Sequence:
    """A model with an averager, and the oracle of both."""

    def __init__(self, method: str, seed: int, folder: Path, **options: Any) -> None:
        self.rng = random.Random(f"{method} {seed}")
        self.generator = torch.Generator().manual_seed(seed)
        self.method, self.folder, self.log = method, folder, []
        self.number = 0
        self.options, self.make_method, self.acts = self._draw_method()
        filters, self.keeps = self.rng.choice(FILTERS)
        self.options |= filters
        self.options["buffers"] = self.rng.choice(("statistics", "average", "copy"))
        self.options["flat"] = self.rng.random() < 0.2 and method != "posthoc-ema"
        self.options["dtype"] = self.rng.choice(DTYPES)
        self.options |= options
        if method in TAKE_START and (late := _start_of(self.options)):
            self.make_method = partial(self.make_method, **late)
        self.optimizer = self.rng.choice(OPTIMIZERS)
        self.first = self.rng.choice((0, 0, 2))
        self.model = Network(self.generator)
        self.worst = torch.finfo(self.options["dtype"] or torch.float64).eps
        self.cast_to(self.rng.choice((torch.float32, torch.float32, torch.float64)))
        self.saved: Any = None
        hooked = self.rng.random() < 0.6
        self.optimizers = self._new_optimizers()
        self._construct(self.optimizers if hooked else None)
        self.oracle = self._begin()
        self.buffers = {n for n, (_, b) in self.named().items() if b}
        """The buffers that the averager knows of."""

    # What is drawn.

    def _draw_method(self) -> tuple[dict[str, Any], Callable[..., Any], Any]:
        """Draw options; return the reference, and when copied tensors are taken."""
        rng = self.rng
        decay = rng.choice((constant(0.8), count_warmup(0.9)))
        every = rng.choice((1, 1, 2, 3))
        k = rng.choice((1, 2, 3))

        def averages(steps: int, epochs: int) -> str | None:
            return "average" if steps and steps % every == 0 else None

        def at_k(steps: int, epochs: int) -> str | None:
            return "average" if steps and steps % k == 0 else None

        choices: dict[str, Any] = {
            "ema": (
                {"decay": decay, "update_every": every},
                lambda live, names, **start: slow.ReferenceEMA(
                    live, decay, every, **start
                ),
                averages,
            ),
            "switch-ema": (
                {"decay": decay, "update_every": every, "switch_every": k},
                lambda live, names: slow.ReferenceSwitchEMA(live, decay, every, k),
                averages,
            ),
            "swa": (
                {"start": k - 1},
                lambda live, names: slow.ReferenceSWA(live, k - 1),
                "taken",
            ),
            "swag": (
                {"start": k - 1, "rank": 2},
                lambda live, names: slow.ReferenceSWA(live, k - 1),
                "taken",
            ),
            "lawa": (
                {"k": k},
                lambda live, names: slow.ReferenceLAWA(live, k),
                "read",
            ),
            "pswa": (
                {"period": k},
                lambda live, names: slow.ReferencePSWA(live, k),
                "taken",
            ),
            "lookahead": (
                {"k": k, "alpha": 0.5},
                lambda live, names: slow.ReferenceLookahead(live, k, 0.5),
                at_k,
            ),
            "snoo": (
                {"k": k, "alpha": 0.7, "momentum": 0.4},
                lambda live, names: slow.ReferenceSnoo(live, names, k, 0.7, 0.4),
                at_k,
            ),
            "literal-eq3": (
                {"decay": constant(0.8), "every": Steps(k)},
                lambda live, names: slow.ReferenceEq3(live, 0.8, k),
                lambda steps, epochs: "average" if steps % k else "read",
            ),
            "pace": (
                {"rate": 0.5, "strength": 0.5, "kappa": 0.2},
                lambda live, names: slow.ReferencePACE(live, names, 0.5, 0.5, 0.2),
                lambda steps, epochs: "average",
            ),
            "elastic-reset": (
                {"decay": decay, "switch_every": Steps(k)},
                lambda live, names: slow.ReferenceElasticReset(live, decay, k),
                lambda steps, epochs: "average",
            ),
            "bema": (
                {},
                lambda live, names: slow.ReferenceBEMA(
                    live, names, 0.5, 0.2, 10.0, 1.0
                ),
                lambda steps, epochs: "read",
            ),
            "tail-ema": (
                {"decay": decay, "share": 0.5},
                lambda live, names, **start: slow.ReferenceTailEMA(
                    live, names, decay, 0.5, **start
                ),
                lambda steps, epochs: "read",
            ),
            "posthoc-ema": (
                {"folder": self.folder, "every": Steps(1000)},
                lambda live, names: slow.ReferenceEMA(live, _posthoc_decay),
                lambda steps, epochs: "average",
            ),
        }
        return choices[self.method]

    def noise(self, like: Tensor) -> Tensor:
        """Draw something of the same shape, strides and dtype."""
        drawn = torch.randn(like.shape, generator=self.generator)
        return torch.empty_like(like, requires_grad=False).copy_(drawn * 0.3)

    # The objects.

    def _new_optimizers(self) -> list[torch.optim.Optimizer]:
        parameters = list(self.model.parameters())
        parts = [parameters[: self.first], parameters[self.first :]]
        return [self.optimizer(part, lr=RATE) for part in parts if part]

    def _construct(self, optimizers: list[torch.optim.Optimizer] | None) -> None:
        self.averager = create_averager(
            self.method, self.model, optimizers, **self.options
        )
        self.is_hooked = optimizers is not None
        self.bystander = EMA(self.model, decay=constant(0.5))

    def _renew_optimizers(self, hook: bool) -> None:
        self.averager.detach()
        self.optimizers = self._new_optimizers()
        if hook:
            self.averager.attach_to(self.optimizers)
        self.is_hooked = hook

    def named(self) -> dict[str, tuple[Tensor, bool]]:
        """Every tensor of the model by its first name, and whether it is a buffer."""
        parameters = {n: (p.detach(), False) for n, p in self.model.named_parameters()}
        buffers = {n: (b, True) for n, b in self.model.named_buffers()}
        return parameters | buffers

    def live(self) -> Weights:
        return {name: tensor.clone() for name, (tensor, _) in self.named().items()}

    def is_averaged(self, name: str, tensor: Tensor, is_buffer: bool) -> bool:
        if not tensor.is_floating_point():
            return False
        if not is_buffer or self.options["buffers"] == "average":
            return True
        return self.options["buffers"] == "statistics" and name.startswith("norm.")

    def kept_dtype(self, parameter: Tensor) -> torch.dtype:
        """In which dtype the shadow should keep a parameter."""
        own = torch.promote_types(parameter.dtype, torch.float32)
        return self.options["dtype"] or own

    # The oracle.

    def _begin(self) -> Oracle:
        live = self.live()
        kept = {n: v for n, v in self.named().items() if self.keeps(n)}
        averaged = {n for n, (t, b) in kept.items() if self.is_averaged(n, t, b)}
        parameters = {n for n in averaged if not kept[n][1]}
        start = {n: live[n].double() for n in averaged}
        return Oracle(
            self.make_method(start, parameters),
            averaged,
            {n: live[n] for n in kept if n not in averaged},
            mark=self._mark(),
            begin={
                n: live[n].to(self.kept_dtype(live[n]))
                for n, (_, b) in kept.items()
                if not b
            },
        )

    def _mark(self) -> list[float]:
        return [
            t.flatten()[0].item()
            for n, (t, b) in self.named().items()
            if not b and self.keeps(n)
        ]

    def _follow(self) -> None:
        """Before an optimizer's first step, the average is that of loaded weights."""
        if self.oracle.has_started or not self.is_hooked:
            return
        self._adapt()
        live = self.live()
        begin = self.oracle.begin.items()
        if any(not torch.equal(live[n].to(old.dtype), old) for n, old in begin):
            mark = self.oracle.mark
            self.oracle = self._begin()
            self.oracle.mark = mark

    def _notice(self) -> None:
        """Buffers that were added begin at their present values."""
        oracle, named = self.oracle, self.named()
        known = oracle.averaged | oracle.copied.keys()
        if {n for n, (_, b) in named.items() if b} != self.buffers:
            self._adapt()
            self.buffers = {n for n, (_, b) in named.items() if b}
        for name in known - named.keys():
            oracle.drop(name)
        for name, (tensor, is_buffer) in named.items():
            if name in known or not self.keeps(name):
                continue
            if self.is_averaged(name, tensor, is_buffer):
                oracle.averaged.add(name)
                if not is_buffer and hasattr(oracle.method, "parameters"):
                    oracle.method.parameters.add(name)
                    if hasattr(oracle.method, "velocity"):
                        oracle.method.velocity[name] = 0 * tensor.double()
                oracle.put(name, tensor)
                if not is_buffer:
                    oracle.begin[name] = tensor.to(self.kept_dtype(tensor), copy=True)
            else:
                oracle.copied[name] = tensor.clone()
        for name in list(oracle.begin):
            if name not in named:
                del oracle.begin[name]

    def _adapt(self, without: str = "") -> None:
        """Begin anew where a buffer has another shape, in the averages used now.

        Each average does so when it is next used, and saving uses them all. A cast of
        the model is followed as well: it loads no other weights.
        """
        live, oracle = self.live(), self.oracle
        for name, old in oracle.begin.items():
            if name in live:
                oracle.begin[name] = old.to(self.kept_dtype(live[name]))
        for weights in (*oracle.sets(without), oracle.copied):
            for name, value in weights.items():
                if name in live and value.shape != live[name].shape:
                    weights[name] = live[name].to(value.dtype)

    def _take(self, how: str | None, live: Weights) -> None:
        """Follow what a step or an epoch has done to copied tensors."""
        oracle = self.oracle
        if how == "taken":
            how = "read" if len(oracle.method.taken) == 1 else "average"
        if how == "read":
            oracle.copied = {name: live[name] for name in oracle.copied}
            oracle.is_stale = False
        elif how == "average":
            oracle.is_stale = True

    def _look(self) -> None:
        self._adapt(without=NOT_SHOWN.get(self.method, ""))
        if self.oracle.is_stale:
            live = self.live()
            self.oracle.copied = {name: live[name] for name in self.oracle.copied}
            self.oracle.is_stale = False

    @property
    def shows_live(self) -> bool:
        method = self.oracle.method
        if self.method == "elastic-reset":
            return True
        if self.method == "pswa":
            return not method.taken and method.epochs < method.period
        if getattr(method, "began", 0) is None:
            return True
        return not getattr(method, "taken", [None])

    def shown(self) -> Weights:
        """What averaged() should show."""
        live = self.live()
        if self.shows_live:
            return live
        self._look()
        shadow = self.oracle.method.shadow
        return live | self.oracle.copied | {n: shadow[n] for n in self.oracle.averaged}

    # Comparing.

    def compare(self, what: str, found: Weights, expected: Weights) -> None:
        for name, value in expected.items():
            if name not in found:
                raise Difference(f"{what} has no {name}")
            tensor = found[name]
            if tensor.shape != value.shape:
                raise Difference(f"{what}: {name} is {tensor.shape}, not {value.shape}")
            eps = max(self.worst, torch.finfo(_float(tensor)).eps)
            units = BFLOAT16_UNITS if eps == BFLOAT16_EPS else UNITS
            limit = units * eps * (1 + value.double().abs())
            if not bool(((tensor.double() - value.double()).abs() <= limit).all()):
                raise Difference(f"{what}: {name} is {tensor}, not {value}")

    def exactly(self, what: str, found: Weights, expected: Weights) -> None:
        for name, value in expected.items():
            if not torch.equal(found[name], value):
                raise Difference(f"{what}: {name} is {found[name]}, not {value}")

    def finish(self) -> None:
        self.look()
        self.read_tensors()
        self.check_counts()

    def check_counts(self) -> None:
        counted = self.averager.steps, self.averager.epochs
        expected = self.oracle.method.steps, self.oracle.method.epochs
        if counted != expected:
            raise Difference(f"counted {counted}, not {expected}")

    # Operations.

    def draw(self) -> str:
        return self.rng.choice(OPERATIONS)

    def operate(self, name: str, then_look: bool) -> None:
        """Do something, and often look at what came of it."""
        self.log.append(name)
        getattr(self, name)()
        self.check_counts()
        if then_look and self.rng.random() < 0.4:
            self.log.append("look")
            self.look()

    def step(self) -> None:
        self._notice()
        oracle = self.oracle
        if self.is_hooked:
            self._follow()
            oracle = self.oracle
        oracle.has_started = True
        live = self.live()
        for name, parameter in self.model.named_parameters():
            if not any(parameter is p for o in self.optimizers for p in _held(o)):
                continue
            parameter.grad = None
            if parameter.requires_grad:
                parameter.grad = self.noise(parameter)
                live[name].add_(parameter.grad, alpha=-RATE)
        for optimizer in self.optimizers:
            optimizer.step()
        if not self.is_hooked:
            self.averager.update()
        self.bystander.update()
        waits = getattr(oracle.method, "began", 0) is None
        how = self.acts
        if waits:
            how = None
        elif callable(how):
            how = how(oracle.method.steps + 1, oracle.method.epochs)
            if how is not None:
                self._adapt(without="" if self._resets_now() else "initial")
        else:
            how = None
        after = self._after(oracle.method.after_step, live)
        oracle.step_in_epoch += 1
        if waits and oracle.method.began is not None:
            how = "read"
        self._take(how, live)
        self.compare("live", self.live(), after)

    def steps(self) -> None:
        for _ in range(self.rng.randrange(2, 5)):
            self.step()

    def _after(self, call: Callable[[Weights], Weights], live: Weights) -> Weights:
        averaged = {n: live[n].double() for n in self.oracle.averaged}
        return live | call(averaged)

    def skipped_step(self) -> None:
        """What a GradScaler does to a fused optimizer on an overflow."""
        if not self.is_hooked or self.optimizer is torch.optim.SGD:
            return
        self._notice()
        self._follow()
        self.oracle.has_started = True
        for optimizer in self.optimizers:
            optimizer.zero_grad()
            optimizer.found_inf = torch.ones(())
            optimizer.step()
            del optimizer.found_inf

    def end_epoch(self) -> None:
        self._notice()
        oracle, live = self.oracle, self.live()
        method = oracle.method
        oracle.has_started = True
        has_missed = (
            self.averager.needs_steps
            and oracle.step_in_epoch == 0
            and oracle.mark not in (None, self._mark())
        )
        has_written = self.averager.end_epoch()
        if has_missed:
            method.epochs += 1
            after, is_due = live, False
        else:
            is_due = method.epochs + 1 > getattr(method, "start", 0)
            if not callable(self.acts) and is_due:
                self._adapt()
            if self.method == "switch-ema" and self._is_multiple(method.switch_every):
                self._adapt()
            taken_before = len(getattr(method, "taken", ()))
            waits = getattr(method, "began", 0) is None
            after = self._after(method.after_epoch, live)
            if waits and method.began is not None:
                self._take("read", live)
            if not callable(self.acts) and is_due:
                how = self.acts
                if how == "taken":
                    how = "average" if taken_before else "read"
                self._take(how, live)
            is_due = (
                self.method == "switch-ema" and method.epochs % method.switch_every == 0
            ) or (self.method == "pswa" and method.epochs % method.period == 0)
        oracle.step_in_epoch = 0
        oracle.mark = self._mark()
        if has_written is not is_due:
            raise Difference(f"end_epoch() returned {has_written}")
        self.compare("live", self.live(), after)

    def _resets_now(self) -> bool:
        """Whether this step uses the initial weights, too."""
        method = self.oracle.method
        if self.method == "elastic-reset":
            return bool((method.steps + 1) % method.switch_every == 0)
        return True

    def _is_multiple(self, of: int) -> bool:
        return (self.oracle.method.epochs + 1) % of == 0

    def switch(self) -> None:
        if not hasattr(self.averager, "switch"):
            return
        self._notice()
        self._follow()
        self._adapt()
        method = self.oracle.method
        expected = self.live() | {n: method.shadow[n] for n in self.oracle.averaged}
        self.averager.switch()
        if self.method == "elastic-reset":
            method.shadow = dict(method.initial)
        self.compare("live after switch()", self.live(), expected)

    def look(self) -> None:
        self._notice()
        self._follow()
        live, expected = self.live(), self.shown()
        fails, nested = self.rng.random() < 0.3, self.rng.random() < 0.3
        other = self.bystander.averaged_state_dict() if nested else {}
        try:
            with self.averager.averaged():
                self.compare("averaged()", self.live(), expected)
                if nested:
                    with self.bystander.averaged():
                        now = {n: t for n, t in self.live().items() if n in other}
                        self.exactly("averaged() of another", other, now)
                    self.compare("averaged() after another", self.live(), expected)
                inside = self.averager.live_state_dict()
                self.exactly(
                    "live_state_dict() inside",
                    inside,
                    {n: t for n, t in live.items() if n in inside},
                )
                if fails:
                    raise KeyError
        except KeyError:
            pass
        self.exactly("live after averaged()", self.live(), live)

    def refused_inside(self) -> None:
        self._notice()
        self._follow()
        live = self.live()
        if not self.shows_live:
            self._look()
        with self.averager.averaged():
            calls = [self.averager.update, self.averager.end_epoch]
            calls += [self.averager.reset, lambda: pickle.dumps(self.averager)]
            calls += [self.optimizers[0].step] if self.is_hooked else []
            for call in calls:
                _must_raise(RuntimeError, call)
        self.exactly("live after refusals", self.live(), live)

    def read_tensors(self) -> None:
        self._notice()
        self._follow()
        expected = self.shown()
        found = self.averager.averaged_tensors()
        kept = self.oracle.averaged | self.oracle.copied.keys()
        self.compare(
            "averaged_tensors()",
            found,
            {n: v for n, v in expected.items() if n in kept},
        )

    def read_state(self) -> dict[str, Any]:
        self.look()
        self._follow()
        self._look()
        self._adapt()
        state: dict[str, Any] = self.averager.state_dict()
        if not self.shows_live:
            shadow = self.shown()
            self.compare(
                "state_dict()",
                state["shadow"],
                {n: shadow[n] for n in state["shadow"]},
            )
        return state

    def save(self) -> None:
        state = copy.deepcopy(self.read_state())
        oracle = copy.deepcopy(self.oracle)
        live = self.averager.live_state_dict()
        self.saved = state, live, oracle, _shapes(self.live())

    def load(self) -> None:
        self._load(new=False)

    def load_into_new_objects(self) -> None:
        self._load(new=True)

    def _load(self, new: bool) -> None:
        if self.saved is None:
            return
        state, live, oracle, shapes = copy.deepcopy(self.saved)
        if {n: s for n, (s, _) in shapes.items()} != {
            n: s for n, (s, _) in _shapes(self.live()).items()
        }:
            return
        if new:
            self.averager.detach()
            self.model = copy.deepcopy(self.model)
            self.nudge_all()
            self.optimizers = self._new_optimizers()
            self._construct(self.optimizers if self.rng.random() < 0.6 else None)
        self.model.load_state_dict(live)
        self.averager.load_state_dict(state)
        oracle.has_started, oracle.mark, oracle.is_stale = True, None, False
        now = self.live()
        self.oracle = oracle
        if "scratch" in oracle.averaged:
            oracle.put("scratch", now["scratch"])
        elif "scratch" in oracle.copied:
            oracle.copied["scratch"] = now["scratch"]
        state["waiting_for"] = None  # is of the optimizers there were
        if shapes == _shapes(now) and not _equal(self.averager.state_dict(), state):
            raise Difference("state_dict() is not what was loaded")

    def copy_both(self) -> None:
        """Go on with copies; what becomes of the originals must not matter."""
        self.averager.detach()
        pair = self.model, self.averager
        if self.rng.random() < 0.5:
            self.model, self.averager = copy.deepcopy(pair)
        else:
            self.model, self.averager = pickle.loads(pickle.dumps(pair))
        with torch.no_grad():
            for parameter in pair[0].parameters():
                parameter.fill_(7)
        if self.rng.random() < 0.5:
            pair[1].update()
        self.bystander = EMA(self.model, decay=constant(0.5))
        self._renew_optimizers(hook=self.rng.random() < 0.6)

    def cast(self) -> None:
        dtypes = [torch.float32, torch.float64]
        if not self.options["flat"]:
            dtypes.append(torch.bfloat16)
        self.cast_to(self.rng.choice(dtypes))

    def cast_part(self) -> None:
        if not self.options["flat"]:
            part = self.rng.choice((self.model.norm, self.model.head))
            self.cast_to(self.rng.choice((torch.float32, torch.float64)), part)

    def cast_to(self, dtype: torch.dtype, part: nn.Module | None = None) -> None:
        (part or self.model).to(dtype)
        self.worst = max(self.worst, torch.finfo(dtype).eps)
        for parameter in self.model.parameters():
            parameter.grad = None

    def move_memory(self) -> None:
        if not self.options["flat"]:
            for parameter in self.model.parameters():
                if self.rng.random() < 0.5:
                    parameter.data = parameter.data.clone()

    def nudge(self) -> None:
        """Change weights without a step, as loading others does."""
        with torch.no_grad():
            for parameter in self.model.parameters():
                if self.rng.random() < 0.5:
                    parameter.add_(self.noise(parameter))

    def nudge_all(self) -> None:
        with torch.no_grad():
            for tensor, _ in self.named().values():
                if tensor.is_floating_point():
                    tensor.add_(self.noise(tensor))

    def change_buffers(self) -> None:
        for name, buffer in self.model.named_buffers():
            *path, key = name.split(".")
            owner = self.model.get_submodule(".".join(path))
            if not buffer.is_floating_point():
                buffer.add_(1)
            elif self.rng.random() < 0.5:
                buffer.add_(self.noise(buffer))
            else:
                setattr(owner, key, buffer + self.noise(buffer))

    def grow_cache(self) -> None:
        self.model.cache = self.noise(self.model.cache.new_empty(self.rng.randrange(5)))

    def add_buffer(self) -> None:
        self.number += 1
        value = self.noise(self.model.cache)
        self.model.norm.register_buffer(f"note{self.number}", value)

    def remove_buffer(self) -> None:
        if self.number and f"note{self.number}" in self.model.norm._buffers:
            delattr(self.model.norm, f"note{self.number}")

    def add_module(self) -> None:
        self.number += 1
        module = nn.Linear(2, 1).to(self.model.scale.dtype)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.copy_(self.noise(parameter))
        self.model.body.add_module(f"extra{self.number}", module)
        step = self.optimizers[0].step if self.is_hooked else self.averager.update
        self._refresh_after_refusal(step)

    def remove_module(self) -> None:
        names = [n for n in self.model.body._modules if n.startswith("extra")]
        if names:
            delattr(self.model.body, self.rng.choice(names))
            self._refresh_after_refusal()

    def _refresh_after_refusal(self, *calls: Callable[[], Any]) -> None:
        calls += self.averager.end_epoch, self.averager.averaged_state_dict
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        _must_raise(RuntimeError, self.rng.choice(calls))
        self.refresh()
        self._renew_optimizers(self.is_hooked)

    def refresh(self) -> None:
        self.averager.refresh()
        self.bystander.refresh()
        self._notice()
        self._adapt()

    def replace_parameter(self) -> None:
        if not self.options["flat"]:
            self.model.scale = nn.Parameter(
                self.model.scale + self.noise(self.model.scale)
            )
            self._renew_optimizers(self.is_hooked)

    def freeze(self) -> None:
        for parameter in self.model.parameters():
            parameter.requires_grad_(self.rng.random() < 0.7)

    def reset(self) -> None:
        self._notice()
        self.averager.reset()
        has_started = self.oracle.has_started
        self.oracle = self._begin()
        self.oracle.has_started = has_started

    def detach(self) -> None:
        self.averager.detach()
        self.is_hooked = False

    def attach(self) -> None:
        if not self.is_hooked:
            self.averager.attach_to(self.optimizers)
            self.is_hooked = True

    def step_without_counting(self) -> None:
        if self.is_hooked:
            self.averager.detach()
        self.nudge()
        if self.is_hooked:
            self.averager.attach_to(self.optimizers)


OPERATIONS = (
    *["step"] * 4,
    *["steps"] * 3,
    *["end_epoch"] * 4,
    *["change_buffers"] * 2,
    *["cast", "cast_part", "copy_both", "save", "load", "load_into_new_objects"] * 2,
    "skipped_step",
    "switch",
    "refused_inside",
    "read_tensors",
    "read_state",
    "move_memory",
    "nudge",
    "grow_cache",
    "add_buffer",
    "remove_buffer",
    "add_module",
    "remove_module",
    "refresh",
    "replace_parameter",
    "freeze",
    "reset",
    "detach",
    "attach",
    "step_without_counting",
)


def _posthoc_decay(n: int) -> float:
    return float((1 - 1 / (n + 1)) ** (sigma_rel_to_gamma(0.05) + 1))


def _held(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _float(tensor: Tensor) -> torch.dtype:
    return tensor.dtype if tensor.is_floating_point() else torch.float64


def _shapes(live: Weights) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in live.items()}


def _must_raise(kind: type[Exception], call: Callable[[], Any]) -> None:
    try:
        call()
    except kind:
        return
    raise Difference(f"{call} was not refused")


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other.to(one.dtype))  # a cast may be followed later
    if isinstance(one, dict):
        return all(other[k] is None or _equal(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other)
