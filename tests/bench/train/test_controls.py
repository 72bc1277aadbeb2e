"""Controls for Switch EMA: what f stands for, and that it is what is trained."""

import pytest

from switch_ema.bench.methods import surviving_share
from switch_ema.bench.plan.cells import make_plan
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.train.context import RunContext
from switch_ema.bench.train.loop import Training, train_cell

STEPS, EPOCHS = 4, 6
SWITCH = "switch-ema:decay=0.7"
SHARE = surviving_share(SWITCH, {}, STEPS)


def trained(task, folder, *methods):
    """Train methods in one comparison; return the results by label."""
    config = CompareConfig(
        tasks=(task,), methods=("plain", SWITCH, *methods), seeds=1, epochs=EPOCHS
    )
    found = {}
    for cell in make_plan(config):
        result = train_cell(cell, RunContext(folder, "cpu"))
        assert result.status == "done", result.message
        found |= dict.fromkeys(cell.methods, result)
    return found


def values(result, label):
    return [value for (value,) in result.values[label]["error"]]


def test_epochs_times_f(tiny, tmp_path):
    short = round(SHARE * EPOCHS)
    assert 1 < short < EPOCHS
    control, same = "ema@epochs*f", f"ema@epochs={short}"
    found = trained(tiny, tmp_path, control, same)
    assert values(found[control], control) == values(found[same], same)
    assert len(values(found[control], control)) == short
    assert found[control].share == pytest.approx(SHARE)
    assert found[same].share is None and found["plain"].share is None


def test_the_schedule_ends_with_the_shorter_training(tiny, tmp_path):
    config = CompareConfig(
        tasks=(tiny,),
        methods=("plain", SWITCH, "ema@epochs*f"),
        seeds=1,
        epochs=EPOCHS,
        schedule="cosine",
        warmup_epochs=1,
    )
    cell = make_plan(config)[1]
    training = Training(cell, RunContext(tmp_path, "cpu"))
    assert training.cell.id == cell.id and training.cell.control_of == SWITCH
    result = training.run()
    assert result.status == "done"
    assert training.optimizer.param_groups[0]["lr"] == pytest.approx(0, abs=1e-8)


def test_a_stopped_control_continues(tiny, tmp_path):
    config = CompareConfig(
        tasks=(tiny,), methods=("plain", SWITCH, "ema@epochs*f"), seeds=1, epochs=EPOCHS
    )
    cell = make_plan(config)[1]
    straight = train_cell(cell, RunContext(tmp_path / "straight", "cpu"))

    def stop(epoch, latest):
        if epoch == 2:
            raise KeyboardInterrupt

    context = RunContext(tmp_path / "stopped", "cpu")
    with pytest.raises(KeyboardInterrupt):
        train_cell(cell, context, stop)
    resumed = Training(cell, context)
    assert resumed.run().values == straight.values


def test_lookahead_by_f_once_per_epoch(tiny, tmp_path):
    control, same = "lookahead:alpha=f", f"lookahead:alpha={SHARE!r},k={STEPS}"
    other = "lookahead:alpha=f,k=2"
    found = trained(tiny, tmp_path, control, same, other)
    assert values(found[control], control) == values(found[same], same)
    assert values(found[control], control) != values(found[other], other)
    assert found[control].options[control].startswith(f"k={STEPS}, alpha={SHARE}")
    assert found[control].share == pytest.approx(SHARE)
