"""The MMEngine hook in a real runner: evaluation, checkpoints and resuming."""

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
    assert_close,
    plain,
)

pytest.importorskip("mmengine")
from mmengine.hooks import Hook

from switch_ema.bench.logs.reading import read_log
from switch_ema.integrations.mmengine import AveragerHook, SwitchEMAHook
from tests.integrations.mmengine_runs import NLL, Model, runner

pytestmark = pytest.mark.filterwarnings("ignore")


def test_equals_the_plain_loop(tmp_path):
    hook = AveragerHook(**OPTIONS)
    runner(tmp_path, hook).train()
    assert_agree(hook.averager, plain(), "net.")


def test_hooks_can_be_named_in_a_config(tmp_path):
    run = runner(
        tmp_path, {"type": "AveragerHook", "method": "ema", "decay": constant(0.9)}
    )
    run.train()
    (hook,) = [hook for hook in run.hooks if isinstance(hook, AveragerHook)]
    assert_agree(hook.averager, plain("ema"), "net.")


def test_validation_sees_the_average_and_leaves_the_live_weights(tmp_path):
    hook, model = AveragerHook("ema", **OPTIONS), Model()
    runner(tmp_path, hook, model, validate=True).train()
    averaged = hook.averager.averaged_state_dict()["net.0.weight"]
    assert torch.equal(model.seen[-1], averaged)
    assert_same(dict(model.state_dict()), hook.averager.live_state_dict())
    assert not torch.equal(averaged, model.net[0].weight)


def test_a_failing_validation_restores_the_live_weights(tmp_path):
    model = Model(fails=True)
    hook = AveragerHook("ema", **OPTIONS)
    with pytest.raises(Interrupted):
        runner(tmp_path, hook, model, validate=True).train()
    live = plain("ema", epochs=1).live_state_dict()
    assert_close(model.net.state_dict(), live)


def test_an_exception_ends_the_training(tmp_path):
    class Stops(Hook):
        def after_train_iter(self, runner, **kwargs):
            if runner.iter == STEPS:
                raise KeyboardInterrupt

    by = {"metric": "nll", "higher_is_better": False, "error": 0.01}
    hook, model = AveragerHook("ema", best=by, evaluate="both", **OPTIONS), Model()
    run = runner(tmp_path, hook, model, validate=True)
    run.register_hook(Stops())
    with pytest.raises(KeyboardInterrupt):
        run.train()
    assert set(run.val()) == {"nll"}
    assert len(hook.best.scores) == 1


def test_resuming_is_bit_for_bit_and_checkpoints_hold_the_average(
    tmp_path, monkeypatch
):
    # MMEngine 0.10 saves objects of its own, which torch 2.6 and later refuse.
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    whole, model = AveragerHook(**OPTIONS), Model()
    runner(tmp_path / "whole", whole, model).train()
    path = str(tmp_path / "whole" / "epoch_1.pth")
    saved = torch.load(path, weights_only=False)
    reference = plain(epochs=1)
    assert_close(saved["state_dict"], reference.averaged_state_dict(), "net.")

    again, resumed = AveragerHook(**OPTIONS), Model()
    folder = tmp_path / "again"
    runner(folder, again, resumed, load_from=path, resume=True).train()
    assert again.averager.steps == EPOCHS * STEPS
    first, second = whole.averager, again.averager
    assert_same(first.averaged_state_dict(), second.averaged_state_dict())
    assert_same(dict(model.state_dict()), dict(resumed.state_dict()))


def test_a_checkpoint_without_an_average_is_resumed_with_a_warning(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    runner(tmp_path / "plain", Hook(), epochs=1).train()
    path = str(tmp_path / "plain" / "epoch_1.pth")
    hook = AveragerHook(**OPTIONS)
    again = runner(tmp_path / "again", hook, load_from=path, resume=True, epochs=2)
    with pytest.warns(UserWarning, match=WITHOUT_STATE):
        again.train()
    assert hook.averager.steps == STEPS


@pytest.mark.parametrize("how", ["load_from", "resume", "by hand"])
def test_a_test_after_loading_shows_the_averaged_weights(tmp_path, monkeypatch, how):
    """Also where the runner is set to resume, or has trained in between."""
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    runner(tmp_path / "first", AveragerHook("ema", **OPTIONS), name="a").train()
    path = str(tmp_path / "first" / "epoch_1.pth")
    expected = torch.load(path, weights_only=False)["state_dict"]["net.0.weight"]
    model = Model()
    run = runner(
        tmp_path / "second",
        AveragerHook("ema", **OPTIONS),
        model,
        validate=True,
        name="b",
        load_from=path,
        resume=how != "load_from",
    )
    if how == "by hand":
        run.train()
        run.load_checkpoint(path)
    model.seen.clear()
    run.val()
    assert torch.equal(model.seen[0], expected)


def test_resuming_by_hand_is_bit_for_bit(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    whole, again = AveragerHook(**OPTIONS), AveragerHook(**OPTIONS)
    runner(tmp_path / "first", whole, name="a").train()
    run = runner(tmp_path / "second", again, name="b")
    run.train_loop  # noqa: B018  # builds it, which resume() asks for
    run.optim_wrapper = run.build_optim_wrapper(run.optim_wrapper)
    run.resume(str(tmp_path / "first" / "epoch_1.pth"))
    run.train()
    first, second = whole.averager, again.averager
    assert_same(first.averaged_state_dict(), second.averaged_state_dict())
    assert_same(first.live_state_dict(), second.live_state_dict())


def test_a_second_hook_is_refused(tmp_path):
    run = runner(tmp_path, AveragerHook())
    run.register_hook(SwitchEMAHook())
    with pytest.raises(ValueError, match="takes one AveragerHook, got 2"):
        run.train()


def test_accumulation_counts_optimizer_steps(tmp_path):
    hook, model = AveragerHook(**OPTIONS), Model()
    wrapper = {"optimizer": adam(model.net), "accumulative_counts": 2}
    runner(tmp_path, hook, model, optim_wrapper=wrapper).train()
    assert_agree(hook.averager, plain(accumulate=2), "net.")
    assert hook.averager.steps == EPOCHS * STEPS // 2


def test_both_curves_are_those_of_each_alone(tmp_path):
    """Read from the log that the runner's visualizer writes."""
    found, ends = {}, []
    for evaluate in ("averaged", "live", "both"):
        hook, model = AveragerHook("ema", **CURVES, evaluate=evaluate), Model()
        run = runner(
            tmp_path / evaluate,
            hook,
            model,
            validate=True,
            visualizer={
                "type": "Visualizer",
                "name": str(tmp_path / evaluate),
                "vis_backends": [{"type": "LocalVisBackend"}],
            },
        )
        run.train()
        (log,) = (tmp_path / evaluate).glob("**/vis_data/scalars.json")
        values = read_log(log)
        named = {name: list(of_name) for name, of_name in values.items()}
        found[evaluate] = [
            {n: v[i] for n, v in named.items() if n.startswith("nll")}
            for i in range(EPOCHS)
        ]
        ends.append(hook.averager.live_state_dict())
    assert_both_curves(found, "nll")
    assert named["averaging/decay"] == pytest.approx([0.9] * EPOCHS)
    assert named["averaging/distance"][-1] > 0
    assert_same(ends[0], ends[1])
    assert_same(ends[0], ends[2])


class Score(NLL):
    """Made up, one value for each validation that is asked for."""

    def __init__(self, first=0):
        super().__init__()
        self.left = list(SCORES[first:])

    def compute_metrics(self, results):
        return {"score": self.left.pop(0)}


def test_the_best_average_is_shown_after_training_and_resumed(tmp_path, monkeypatch):
    """A checkpoint is written before the validation of its epoch, which is made up."""
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    by = {"metric": "score", "higher_is_better": True, "n": 100}

    def train(name, first=0, **options):
        hook, model = AveragerHook("ema", best=by, **OPTIONS), Model()
        metric, folder = Score(first), tmp_path / name
        run = runner(folder, hook, model, validate=True, metric=metric, **options)
        run.train()
        return hook, model, run, metric

    whole, model, run, metric = train("whole")
    assert whole.best.scores == list(SCORES)
    expected = plain("ema", epochs=2).averaged_state_dict()
    assert_close(whole.best.averaged_state_dict(), expected, "net.")
    metric.left = [0.0]
    run.val()
    assert torch.equal(model.seen[-1], whole.best.averaged_state_dict()["net.0.weight"])
    assert whole.best.scores == list(SCORES)  # only those of the training
    for epoch in (1, 2):
        path = str(tmp_path / "whole" / f"epoch_{epoch}.pth")
        again, *_ = train(f"again{epoch}", epoch - 1, load_from=path, resume=True)
        assert again.best.scores == list(SCORES)
        best = whole.best.averaged_state_dict()
        assert_same(again.best.averaged_state_dict(), best)
        assert_same(again.averager.live_state_dict(), whole.averager.live_state_dict())


@pytest.mark.parametrize("by_epoch", [True, False])
def test_an_average_may_begin_after_a_share_of_the_run(tmp_path, by_epoch):
    hook = AveragerHook("ema", start="50%", **OPTIONS)
    model, expected = Model(), EPOCHS * STEPS / 2
    if by_epoch:
        runner(tmp_path, hook, model).train()
    else:  # 8 iterations are 4 steps
        wrapper = {"optimizer": adam(model.net), "accumulative_counts": 2}
        run = runner(tmp_path, hook, model, optim_wrapper=wrapper, max_iters=8)
        run.train()
        expected = 2
    assert hook.averager.state_dict()["average_start"] == expected
