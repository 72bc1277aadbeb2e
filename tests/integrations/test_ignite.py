"""The Ignite handler against the plain loop; evaluators, exceptions and resuming."""

from copy import deepcopy

import pytest
import torch

from switch_ema import constant
from tests.averaging.helpers import assert_same
from tests.integrations.helpers import (
    CURVES,
    EPOCHS,
    OPTIONS,
    SCORES,
    STEPS,
    WITHOUT_STATE,
    Interrupted,
    adam,
    assert_agree,
    assert_both_curves,
    loader,
    loss_of,
    network,
    plain,
)

pytest.importorskip("ignite")
from ignite.engine import DeterministicEngine, Engine, Events
from ignite.handlers import Checkpoint, DiskSaver
from ignite.metrics import Average

from switch_ema.integrations.best import BestBy
from switch_ema.integrations.ignite import SwitchEMAHandler


class Run:
    def __init__(self, method="switch-ema", process=None, make=Engine, **options):
        self.model = network()
        self.optimizer = adam(self.model)

        def step(engine, batch):
            self.optimizer.zero_grad()
            loss_of(self.model, batch).backward()
            self.optimizer.step()

        self.seen = []
        self.trainer = make(step)
        self.evaluator = Engine(process or self.look)
        self.handler = SwitchEMAHandler(
            self.model, self.optimizer, method, **(OPTIONS | options)
        )
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

    run = Run("ema", process=fails)
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


@pytest.mark.parametrize("method", ["switch-ema", "ema"])
@pytest.mark.parametrize("at", [STEPS - 1, STEPS, 2 * STEPS])
def test_resuming_after_an_iteration_is_bit_for_bit(method, at):
    """Also after the last one of an epoch, whose end is yet to come."""

    def train(saved=None):
        run = Run(method, make=DeterministicEngine)
        for name, one in run.to_save().items() if saved else ():
            one.load_state_dict(saved[name])
        states = {}
        run.trainer.add_event_handler(
            Events.ITERATION_COMPLETED(once=at),
            lambda: states.update(
                {name: deepcopy(o.state_dict()) for name, o in run.to_save().items()}
            ),
        )
        run.trainer.run(loader(), max_epochs=EPOCHS)
        return run.handler.averager, states

    whole, saved = train()
    again, _ = train(saved)
    assert_same(whole.averaged_state_dict(), again.averaged_state_dict())
    assert_same(whole.live_state_dict(), again.live_state_dict())
    assert repr(again) == repr(whole)


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


class Measured(Run):
    """Evaluates after each epoch, and notes what a logger would see."""

    def __init__(self, **options):
        super().__init__("ema", process=self.measure, **options)
        self.logged = []
        Average().attach(self.evaluator, "loss")
        self.evaluator.add_event_handler(Events.STARTED, lambda: self.model.eval())
        self.evaluator.add_event_handler(Events.EPOCH_COMPLETED, self.log)
        self.trainer.add_event_handler(Events.EPOCH_STARTED, lambda: self.model.train())
        self.trainer.add_event_handler(
            Events.EPOCH_COMPLETED, lambda: self.evaluator.run(loader())
        )

    def measure(self, engine, batch):
        assert not self.model.training
        self.look(engine, batch)
        with torch.no_grad():
            return loss_of(self.model, batch).item()

    def log(self, engine):
        self.logged.append(engine.state.metrics | self.trainer.state.metrics)


def test_both_curves_are_those_of_each_alone():
    found, ends = {}, []
    for evaluate in ("averaged", "live", "both"):
        run = Measured(**CURVES, evaluate=evaluate)
        run.trainer.run(loader(), max_epochs=EPOCHS)
        found[evaluate] = run.logged
        ends.append(run.handler.live.state_dict())
    assert_both_curves(found, "loss")
    assert run.logged[-1]["averaging/decay"] == pytest.approx(0.9)
    assert run.logged[-1]["averaging/distance"] > 0
    assert_same(ends[0], ends[1])
    assert_same(ends[0], ends[2])


def test_the_best_average_is_shown_after_training_and_resumed(tmp_path):
    class Scored(Run):
        def __init__(self):
            by = BestBy("score", higher_is_better=True, n=100)
            super().__init__("ema", best=by)
            self.evaluator.add_event_handler(Events.EPOCH_COMPLETED, self.score)
            end = Events.EPOCH_COMPLETED
            self.trainer.add_event_handler(end, lambda: self.evaluator.run(loader()))
            saver = DiskSaver(str(tmp_path), require_empty=False)
            save = Checkpoint(
                self.to_save(),
                saver,
                filename_pattern="{global_step}.pt",
                global_step_transform=lambda *_: self.trainer.state.epoch,
                n_saved=None,
            )
            self.trainer.add_event_handler(end, save)

        def score(self, engine):
            engine.state.metrics["score"] = SCORES[self.trainer.state.epoch - 1]

    whole = Scored()
    whole.trainer.run(loader(), max_epochs=EPOCHS)
    assert whole.handler.best.scores == list(SCORES)
    expected = whole.seen[STEPS]  # in the evaluation of the second epoch
    whole.evaluator.run(loader())
    assert torch.equal(whole.seen[-1], expected)
    assert torch.equal(whole.handler.averaged.state_dict()["0.weight"], expected)
    assert whole.handler.best.scores == list(SCORES)  # only those of the training
    for epoch in (1, 2):
        again = Scored()
        saved = torch.load(tmp_path / f"{epoch}.pt", weights_only=False)
        Checkpoint.load_objects(again.to_save(), saved)
        again.trainer.run(loader(), max_epochs=EPOCHS)
        assert again.handler.best.scores == list(SCORES)
        assert_same(
            again.handler.averaged.state_dict(), whole.handler.averaged.state_dict()
        )
        assert_same(again.handler.live.state_dict(), whole.handler.live.state_dict())


def scored_until(stop):
    """Train with an evaluation after each epoch; ``stop`` in the second one."""
    by = BestBy("loss", higher_is_better=False, error=1)
    run = Measured(best=by, evaluate="both")
    run.trainer.add_event_handler(
        Events.ITERATION_COMPLETED(once=STEPS + 1), lambda: stop(run.trainer)
    )
    return run


def test_an_exception_ends_the_training():
    def stop(trainer):
        raise Interrupted

    run = scored_until(stop)
    with pytest.raises(Interrupted):
        run.trainer.run(loader(), max_epochs=EPOCHS)
    assert "loss_live" not in run.evaluator.run(loader()).metrics
    assert len(run.handler.best.scores) == 1


def test_an_interrupted_training_goes_on():
    run = scored_until(Engine.interrupt)
    run.trainer.run(loader(), max_epochs=EPOCHS)
    assert "loss_live" in run.evaluator.run(loader()).metrics
    run.trainer.run(loader(), max_epochs=EPOCHS)
    assert len(run.handler.best.scores) == 1 + EPOCHS
    assert "loss_live" not in run.evaluator.run(loader()).metrics


def test_data_that_can_be_read_once_is_refused_where_it_is_read_more_often():
    run = Run("ema", evaluate="both")
    run.trainer.add_event_handler(
        Events.EPOCH_COMPLETED, lambda: run.evaluator.run(iter(loader()))
    )
    with pytest.raises(ValueError, match="several times, which an iterator"):
        run.trainer.run(loader(), max_epochs=1)


def test_a_training_that_is_never_scored_says_so():
    run = Run("ema", best=BestBy("score", higher_is_better=True, n=100))
    with pytest.warns(UserWarning, match="No held-out evaluation reported 'sc"):
        run.trainer.run(loader(), max_epochs=1)


def test_the_evaluator_of_held_out_data_is_named_where_there_are_several():
    model = network()
    by = BestBy("score", higher_is_better=True, n=100)
    handler = SwitchEMAHandler(model, adam(model), "ema", best=by)
    trainer, first, second = (Engine(lambda engine, batch: None) for _ in range(3))
    with pytest.raises(ValueError, match=r"attach\(trainer, \.\.\., held_out="):
        handler.attach(trainer, first, second)
    with pytest.raises(ValueError, match="must be one of the evaluators"):
        handler.attach(trainer, first, held_out=second)

    def evaluate():
        for evaluator, score in ((first, 0.1), (second, 0.9)):
            evaluator.state.metrics["score"] = score
            evaluator.run([0])

    trainer.add_event_handler(Events.EPOCH_COMPLETED, evaluate)
    handler.attach(trainer, first, second, held_out=second)
    handler.attach(trainer, first)  # later, and without taking its scores
    trainer.run([0], max_epochs=1)
    handler.attach(trainer, first, held_out=first)
    trainer.run([0], max_epochs=2)
    assert handler.best.scores == [0.9, 0.1]
