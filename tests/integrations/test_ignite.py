"""The Ignite handler against the plain loop; evaluators, exceptions and resuming."""

import pytest
import torch

from switch_ema import constant
from tests.averaging.helpers import assert_same
from tests.integrations.helpers import (
    EPOCHS,
    OPTIONS,
    STEPS,
    WITHOUT_STATE,
    Interrupted,
    adam,
    assert_agree,
    loader,
    loss_of,
    network,
    plain,
)

pytest.importorskip("ignite")
from ignite.engine import Engine, Events
from ignite.handlers import Checkpoint, DiskSaver

from switch_ema.integrations.ignite import SwitchEMAHandler


class Run:
    def __init__(self, method="switch-ema", evaluate=None):
        self.model = network()
        self.optimizer = adam(self.model)

        def step(engine, batch):
            self.optimizer.zero_grad()
            loss_of(self.model, batch).backward()
            self.optimizer.step()

        self.seen = []
        self.trainer = Engine(step)
        self.evaluator = Engine(evaluate or self.look)
        self.handler = SwitchEMAHandler(self.model, self.optimizer, method, **OPTIONS)
        self.handler.attach(self.trainer, self.evaluator)

    def look(self, engine, batch):
        self.seen.append(self.model[0].weight.detach().clone())

    def to_save(self):
        return {
            "model": self.handler.live,
            "averaging": self.handler,
            "optimizer": self.optimizer,
            "trainer": self.trainer,
        }


def test_equals_the_plain_loop():
    run = Run()
    run.trainer.run(loader(), max_epochs=EPOCHS)
    assert_agree(run.handler.averager, plain())


def test_evaluators_see_the_average_and_leave_the_live_weights():
    run = Run("ema")
    run.trainer.run(loader(), max_epochs=1)
    live = run.model[0].weight.detach().clone()
    run.evaluator.run(loader())
    averaged = run.handler.averaged.state_dict()["0.weight"]
    assert not torch.equal(averaged, live)
    assert torch.equal(run.seen[0], averaged)
    assert torch.equal(run.model[0].weight, live)


def test_a_failing_evaluation_restores_the_live_weights():
    def fails(engine, batch):
        raise Interrupted

    run = Run("ema", evaluate=fails)
    run.trainer.run(loader(), max_epochs=1)
    live = run.model[0].weight.detach().clone()
    with pytest.raises(Interrupted):
        run.evaluator.run(loader())
    assert torch.equal(run.model[0].weight, live)


def test_resuming_is_bit_for_bit_also_if_saved_by_the_evaluator(tmp_path):
    whole = Run()
    whole.trainer.run(loader(), max_epochs=EPOCHS)

    first = Run()
    saver = DiskSaver(str(tmp_path), create_dir=False, require_empty=False)
    checkpoint = Checkpoint(first.to_save(), saver, filename_pattern="at.pt")
    # The evaluator shows the average here; the saved weights are the live ones.
    first.evaluator.add_event_handler(Events.COMPLETED, checkpoint)
    first.trainer.run(loader(), max_epochs=1)
    first.evaluator.run(loader())

    second = Run()
    saved = torch.load(tmp_path / "at.pt", weights_only=False)
    Checkpoint.load_objects(second.to_save(), saved)
    second.trainer.run(loader(), max_epochs=EPOCHS)
    assert second.handler.averager.steps == EPOCHS * STEPS
    first, last = whole.handler, second.handler
    assert_same(first.averaged.state_dict(), last.averaged.state_dict())
    assert_same(first.live.state_dict(), last.live.state_dict())


def test_a_checkpoint_without_an_average_is_resumed_with_a_warning():
    first = Run()
    first.trainer.run(loader(), max_epochs=1)
    second = Run()
    second.trainer.load_state_dict(first.trainer.state_dict())
    with pytest.warns(UserWarning, match=WITHOUT_STATE):
        second.trainer.run(loader(), max_epochs=2)
    assert second.handler.averager.steps == STEPS


def test_further_evaluators_can_be_attached_later():
    run = Run("ema")
    late = Engine(run.look)
    run.handler.attach(run.trainer, late)
    run.trainer.run(loader(), max_epochs=1)
    assert run.handler.averager.epochs == 1
    late.run(loader())
    assert torch.equal(run.seen[0], run.handler.averaged.state_dict()["0.weight"])


def test_an_evaluator_shows_the_handler_attached_last():
    run = Run("ema")
    other = SwitchEMAHandler(run.model, run.optimizer, "ema", decay=constant(0.6))
    other.attach(run.trainer, run.evaluator)
    run.trainer.run(loader(), max_epochs=1)
    run.evaluator.run(loader())
    shown = other.averaged.state_dict()["0.weight"]
    assert torch.equal(run.seen[0], shown)
    assert not torch.equal(run.handler.averaged.state_dict()["0.weight"], shown)
