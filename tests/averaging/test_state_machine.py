"""Random sequences of everything a user may do, against the reference."""

import copy

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from switch_ema import EMA, SwitchEMA, constant, count_warmup
from switch_ema.averaging.methods.reference import ReferenceSwitchEMA
from tests.averaging.helpers import batches, network, sgd, train_step

DECAY = count_warmup(0.9)


def floats(state):
    return {name: t.clone() for name, t in state.items() if t.is_floating_point()}


class Training(RuleBasedStateMachine):
    """A model with an averager beside a twin that the reference steers."""

    @initialize(
        switch_every=st.integers(1, 2),
        update_every=st.integers(1, 3),
        flat=st.booleans(),
    )
    def begin(self, switch_every, update_every, flat):
        self.options = {
            "decay": DECAY,
            "switch_every": switch_every,
            "update_every": update_every,
            "flat": flat,
        }
        self.model, self.twin = network(), network()
        self.optimizer, self.twin_optimizer = sgd(self.model), sgd(self.twin)
        self.averager = SwitchEMA(self.model, self.optimizer, **self.options)
        self.bystander = EMA(self.model, self.optimizer, decay=constant(0.5))
        self.oracle = ReferenceSwitchEMA(
            floats(self.twin.state_dict()), DECAY, update_every, switch_every
        )
        self.dtype, self.count, self.block = torch.float32, 0, None
        self.saved = None

    def train(self, model, optimizer):
        train_step(model, optimizer, next(batches(1, self.count, self.dtype)))

    @precondition(lambda self: self.block is None)
    @rule()
    def step(self):
        self.count += 1
        self.train(self.model, self.optimizer)
        self.train(self.twin, self.twin_optimizer)
        live = self.oracle.after_step(floats(self.twin.state_dict()))
        self.twin.load_state_dict(live, strict=False)

    @precondition(lambda self: self.block is None)
    @rule()
    def end_epoch(self):
        switched = self.averager.end_epoch()
        live = self.oracle.after_epoch(floats(self.twin.state_dict()))
        self.twin.load_state_dict(live, strict=False)
        assert switched is (self.oracle.epochs % self.options["switch_every"] == 0)

    @precondition(lambda self: self.block is None)
    @rule(other=st.booleans())
    def enter_averaged(self, other):
        self.block = (self.bystander if other else self.averager).averaged()
        self.block.__enter__()

    @precondition(lambda self: self.block is not None)
    @rule(fails=st.booleans())
    def leave_averaged(self, fails):
        error = ValueError("validation failed")
        try:
            left = self.block.__exit__(
                *((ValueError, error, None) if fails else (None, None, None))
            )
            assert not (fails and left)  # exceptions are passed on
        except ValueError as passed_on:
            assert passed_on is error
        self.block = None

    @precondition(lambda self: self.block is not None)
    @rule()
    def step_inside_averaged_is_refused(self):
        before = floats(self.model.state_dict())
        try:
            self.optimizer.step()
        except RuntimeError as refused:
            assert "inside averaged" in str(refused)
        else:
            raise AssertionError("a step inside averaged() was not refused")
        for name, tensor in floats(self.model.state_dict()).items():
            assert torch.equal(tensor, before[name])

    @rule()
    def save(self):
        self.saved = copy.deepcopy(
            (
                self.averager.live_state_dict(),
                self.averager.state_dict(),
                self.optimizer.state_dict(),
                self.twin.state_dict(),
                self.twin_optimizer.state_dict(),
                (self.oracle.shadow, self.oracle.steps, self.oracle.epochs),
                self.dtype,
            )
        )

    @precondition(lambda self: self.saved is not None and self.block is None)
    @rule()
    def load_into_new_objects(self):
        live, state, optimizer, twin, twin_optimizer, oracle, dtype = copy.deepcopy(
            self.saved
        )
        self.dtype = dtype
        self.model = network(seed=7, dtype=dtype)
        self.model.load_state_dict(live)
        self.optimizer = sgd(self.model)
        self.optimizer.load_state_dict(optimizer)
        self.averager = SwitchEMA(self.model, self.optimizer, **self.options)
        self.averager.load_state_dict(state)
        self.bystander = EMA(self.model, self.optimizer, decay=constant(0.5))
        self.twin = network(seed=7, dtype=dtype)
        self.twin.load_state_dict(twin)
        self.twin_optimizer = sgd(self.twin)
        self.twin_optimizer.load_state_dict(twin_optimizer)
        self.oracle.shadow, self.oracle.steps, self.oracle.epochs = oracle

    @rule(part=st.sampled_from(["stem", "body", "norm"]), on=st.booleans())
    def freeze_or_unfreeze(self, part, on):
        for model in (self.model, self.twin):
            getattr(model, part).requires_grad_(on)

    @precondition(lambda self: self.block is None and self.dtype == torch.float32)
    @rule()
    def cast_to_double(self):
        self.dtype = torch.float64
        for model, optimizer in (
            (self.model, self.optimizer),
            (self.twin, self.twin_optimizer),
        ):
            model.double()
            for state in optimizer.state.values():
                if state.get("momentum_buffer") is not None:
                    state["momentum_buffer"] = state["momentum_buffer"].double()
        self.oracle.shadow = {n: t.double() for n, t in self.oracle.shadow.items()}

    @invariant()
    def live_and_average_equal_the_reference(self):
        if not hasattr(self, "averager"):
            return
        live = self.averager.live_state_dict()
        average = self.averager.averaged_state_dict()
        for name, tensor in floats(self.twin.state_dict()).items():
            torch.testing.assert_close(live[name], tensor, rtol=1e-5, atol=2e-6)
            torch.testing.assert_close(
                average[name], self.oracle.shadow[name], rtol=1e-5, atol=2e-6
            )
        assert self.averager.steps == self.oracle.steps
        assert self.averager.epochs == self.oracle.epochs

    def teardown(self):
        if getattr(self, "block", None) is not None:
            self.block.__exit__(None, None, None)


TestTraining = Training.TestCase
TestTraining.settings = settings(
    max_examples=40,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
