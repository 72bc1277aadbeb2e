"""What every averager promises, checked for each method of the registry."""

import gc
import io
import weakref

import pytest
import torch
from torch import nn

from switch_ema import FusedSGD, StateMismatch
from switch_ema.averaging.registry import METHODS
from tests.averaging.helpers import (
    assert_same,
    batches,
    copy_of,
    epoch,
    network,
    sgd,
    train_step,
    trained,
)

pytestmark = pytest.mark.usefixtures("arithmetic")


def test_registry_names_are_the_classes_names():
    assert all(cls.name == name for name, cls in METHODS.items())
    assert all(cls.__doc__ for cls in METHODS.values())


def test_constant_weights_stay_constant(make):
    model = network()
    before = copy_of(model.state_dict())
    averager = make(model)
    for _ in range(3):
        for _ in range(4):
            averager.update()
        averager.end_epoch()
    assert_same(model.state_dict(), before)
    for name, tensor in averager.averaged_state_dict().items():
        torch.testing.assert_close(tensor, before[name], rtol=1e-6, atol=1e-7)


def test_averaging_moves_the_average_away_from_the_live_weights(make):
    model, optimizer, averager = trained(make)
    train_step(model, optimizer, next(batches(1, seed=9)))
    average, live = averager.averaged_state_dict(), averager.live_state_dict()
    same = torch.equal(average["stem.weight"], live["stem.weight"])
    # In these both are one, or there is no average to show.
    assert same is (averager.name in ("literal-eq3", "elastic-reset"))


def test_live_weights_come_back_bit_for_bit(make):
    model, _, averager = trained(make)
    before = copy_of(model.state_dict())
    with averager.averaged():
        pass
    assert_same(model.state_dict(), before)
    with pytest.raises(ZeroDivisionError), averager.averaged():
        _ = 1 / 0
    assert_same(model.state_dict(), before)


def test_averaged_blocks_nest(make):
    model, _, averager = trained(make)
    before = copy_of(model.state_dict())
    average = averager.averaged_state_dict()
    with averager.averaged():
        with averager.averaged():
            assert_same(model.state_dict(), average)
        assert_same(model.state_dict(), average)
    assert_same(model.state_dict(), before)


def test_state_dicts_are_right_inside_and_outside_of_averaged(make):
    model, _, averager = trained(make)
    live, average = averager.live_state_dict(), averager.averaged_state_dict()
    assert_same(live, copy_of(model.state_dict()))
    saved = averager.state_dict()
    with averager.averaged():
        assert_same(averager.live_state_dict(), live)
        assert_same(averager.averaged_state_dict(), average)
        assert_same(averager.state_dict()["shadow"], saved["shadow"])
        assert_same(model.state_dict(), average)
    network(seed=5).load_state_dict(average)  # strict: names and shapes fit


def test_averaged_tensors_are_the_average_without_a_copy(make):
    model, _, averager = trained(make)
    live = copy_of(model.state_dict())
    average = averager.averaged_state_dict()
    tensors = averager.averaged_tensors()
    assert tensors.keys() == average.keys()
    for name, tensor in average.items():
        assert torch.equal(tensors[name], tensor), name
    with averager.averaged():
        inside = averager.averaged_tensors()
        assert all(torch.equal(inside[name], average[name]) for name in average)
    assert_same(model.state_dict(), live)
    again = averager.averaged_tensors()
    assert all(again[name].data_ptr() == tensors[name].data_ptr() for name in tensors)
    assert tensors["head.weight"].data_ptr() == tensors["body.weight"].data_ptr()
    assert not any(tensor.requires_grad for tensor in tensors.values())


def test_snapshots_do_not_change_later(make):
    model, optimizer, averager = trained(make)
    average, live = averager.averaged_state_dict(), averager.live_state_dict()
    kept = copy_of(average), copy_of(live)
    epoch(model, optimizer, averager, 7)
    assert_same(average, kept[0])
    assert_same(live, kept[1])


def test_dtype_and_names_are_the_models(make):
    model, _, averager = trained(make, dtype=torch.float64)
    average = averager.averaged_state_dict()
    assert list(average) == list(model.state_dict())
    assert {t.dtype for t in average.values()} == {torch.float64, torch.int64}


def test_tied_weights_stay_tied(make):
    model, _, averager = trained(make)
    average = averager.averaged_state_dict()
    assert average["head.weight"] is average["body.weight"]
    with averager.averaged():
        assert model.head.weight is model.body.weight
    assert model.head.weight is model.body.weight


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("stop_at", [1, 4, 7])
def test_resuming_is_exact(make, dtype, stop_at):
    """Stopped after some step, saved, loaded into new objects: the same bits."""

    def run(stop=None):
        model = network(dtype=dtype)
        optimizer = sgd(model)
        averager = make(model, optimizer)
        step = 0
        for seed in range(3):
            for batch in batches(3, seed, dtype):
                train_step(model, optimizer, batch)
                step += 1
                if step == stop:
                    model, optimizer, averager = reload(model, optimizer, averager)
            averager.end_epoch()
        return model, averager

    def reload(model, optimizer, averager):
        file = io.BytesIO()
        states = {
            "model": averager.live_state_dict(),
            "optimizer": optimizer.state_dict(),
            "averager": averager.state_dict(),
        }
        torch.save(states, file)
        file.seek(0)
        states = torch.load(file, weights_only=True)
        fresh = network(seed=3, dtype=dtype)
        fresh.load_state_dict(states["model"])
        fresh_optimizer = sgd(fresh)
        fresh_optimizer.load_state_dict(states["optimizer"])
        fresh_averager = make(fresh, fresh_optimizer)
        fresh_averager.load_state_dict(states["averager"])
        return fresh, fresh_optimizer, fresh_averager

    (model, averager), (other, resumed) = run(), run(stop=stop_at)
    assert_same(model.state_dict(), other.state_dict())
    assert_same(averager.averaged_state_dict(), resumed.averaged_state_dict())
    counters = ("steps", "epochs", "switches", "current_decay", "position")
    for name in counters:
        assert getattr(averager, name) == getattr(resumed, name)


def test_state_of_another_model_is_refused_and_changes_nothing(make):
    _, _, averager = trained(make)
    before = averager.state_dict()
    with pytest.raises(StateMismatch, match=r"missing: scale; stem.*unexpected: 0.wei"):
        averager.load_state_dict(make(nn.Sequential(nn.Linear(2, 2))).state_dict())
    other = network()
    other.scale = nn.Parameter(torch.ones(3))
    with pytest.raises(StateMismatch, match=r"of another shape: scale is \[3\]"):
        averager.load_state_dict(make(other).state_dict())
    with pytest.raises(StateMismatch, match="not the state_dict"):
        averager.load_state_dict({"weight": 1})
    after = averager.state_dict()
    assert_same(before["shadow"], after["shadow"])
    assert before["steps"] == after["steps"] == 6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": "7"}, "steps must be whole numbers"),
        ({"steps": None, "epochs": torch.tensor(1)}, "epochs must be whole numbers"),
        ({"shadow": {"scale": [1.0]}}, "scale is list, expected"),
        ({"shadow": 3}, "has no 'shadow'"),
    ],
)
def test_broken_states_are_refused(make, change, message):
    _, _, averager = trained(make)
    state = averager.state_dict()
    if isinstance(change.get("shadow"), dict):
        change = {"shadow": state["shadow"] | change["shadow"]}
    with pytest.raises(StateMismatch, match=message):
        averager.load_state_dict(state | change)
    assert averager.steps == 6


def test_an_average_from_elsewhere_is_taken_over(make):
    model = network()
    averager = make(model)
    weights = copy_of(network(seed=8).state_dict())
    is_mean = averager.name in ("swa", "pswa", "swag")
    extra = {"averaged_models": 3} if is_mean else {}
    if averager.name == "lawa":
        extra["snapshots"] = [{n: weights[n] for n in averager.state_dict()["shadow"]}]
    if extra:
        with pytest.raises(StateMismatch, match=rf"needs {next(iter(extra))}"):
            averager.load_average(weights, steps=20, epochs=4)
        assert averager.steps == 0
    live = copy_of(model.state_dict())
    averager.load_average(weights, steps=20, epochs=4, **extra)
    assert (averager.steps, averager.epochs) == (20, 4)
    assert_same(copy_of(model.state_dict()), live)
    if averager.name != "elastic-reset":  # it shows no average
        assert_same(averager.averaged_state_dict(), weights)
    with pytest.raises(StateMismatch, match=r"There is no stem.wait"):
        averager.load_average({"stem.wait": weights["scale"]})


def test_state_of_another_method_is_refused(make):
    _, _, averager = trained(make)
    state = averager.state_dict() | {"method": "something-else"}
    with pytest.raises(ValueError, match="something-else"):
        averager.load_state_dict(state)


def test_calls_that_would_mix_weights_are_refused_inside_averaged(make):
    model, optimizer, averager = trained(make)
    other = make(model)
    before = copy_of(model.state_dict())
    with averager.averaged():
        inside = copy_of(model.state_dict())
        for call in (
            averager.update,
            averager.end_epoch,
            averager.refresh,
            averager.reset,
            other.update,
            optimizer.step,
            lambda: averager.load_state_dict(averager.state_dict()),
        ):
            with pytest.raises(RuntimeError, match="inside averaged"):
                call()
        assert_same(model.state_dict(), inside)
    assert_same(model.state_dict(), before)
    assert averager.steps == 6


def test_detached_averagers_no_longer_follow(make):
    model, optimizer, averager = trained(make)
    averager.detach()
    average = averager.averaged_state_dict()
    train_step(model, optimizer, next(batches(1)))
    assert averager.steps == 6
    if averager.name not in ("swa", "lawa", "pswa", "swag", "elastic-reset"):
        assert_same(averager.averaged_state_dict(), average)


@pytest.mark.filterwarnings("ignore:No working C compiler")
@pytest.mark.parametrize("optimizer_class", [torch.optim.SGD, FusedSGD])
def test_a_training_that_nobody_holds_is_freed_at_once(make, optimizer_class):
    """Without waiting for the garbage collector: the next training needs the memory."""
    model = network()
    optimizer = optimizer_class(model.parameters(), lr=0.05, momentum=0.9)
    averager = make(model, optimizer)
    epoch(model, optimizer, averager, seed=0)
    with averager.averaged():
        averager.state_dict()
    held = [weakref.ref(thing) for thing in (model, optimizer, averager)]
    gc.disable()
    try:
        del model, optimizer, averager
        assert [reference() for reference in held] == [None, None, None]
    finally:
        gc.enable()


def test_reset_starts_again_from_the_live_weights(make):
    model, _, averager = trained(make)
    averager.reset()
    assert (averager.steps, averager.epochs, averager.switches) == (0, 0, 0)
    assert_same(averager.averaged_state_dict(), copy_of(model.state_dict()))
    fresh = make(model)
    state, new = averager.state_dict(), fresh.state_dict()
    assert_same(state.pop("shadow"), new.pop("shadow"))


RESTARTING = [name for name, cls in METHODS.items() if hasattr(cls, "restart")]
restarting = pytest.mark.parametrize("make", RESTARTING, indirect=True)


@restarting
def test_a_restart_begins_a_new_average_and_keeps_the_counters(make):
    model, optimizer, averager = trained(make)
    averager.restart()
    assert (averager.steps, averager.epochs) == (6, 2)
    assert_same(averager.averaged_state_dict(), copy_of(model.state_dict()))
    fresh = make(model, optimizer)
    for batch in batches(2, seed=7):
        train_step(model, optimizer, batch)
        assert_same(averager.averaged_state_dict(), fresh.averaged_state_dict())
        assert averager.current_decay == fresh.current_decay
    averager.reset()
    state = averager.state_dict()
    assert state.keys() == make(model).state_dict().keys()  # no trace of the restart


@restarting
def test_a_restarted_average_resumes_exactly(make):
    def run(saved_after=None):
        model = network()
        optimizer = sgd(model)
        averager = make(model, optimizer)
        for step, batch in enumerate(batches(9, seed=1), start=1):
            train_step(model, optimizer, batch)
            if step == 4:
                averager.restart()
            if step % 3 == 0:
                averager.end_epoch()
            if step == saved_after:
                state = averager.state_dict()
                averager.detach()
                averager = make(model, optimizer)
                averager.load_state_dict(state)
        return averager

    whole = run()
    for saved_after in (4, 5, 8):
        resumed = run(saved_after)
        assert_same(whole.averaged_state_dict(), resumed.averaged_state_dict())
        assert resumed.current_decay == whole.current_decay


@restarting
def test_a_restart_is_refused_inside_averaged(make):
    _, _, averager = trained(make)
    before = averager.averaged_state_dict()
    with averager.averaged(), pytest.raises(RuntimeError, match="inside averaged"):
        averager.restart()
    assert_same(averager.averaged_state_dict(), before)


@restarting
def test_an_average_from_elsewhere_replaces_a_restarted_one(make):
    _, _, averager = trained(make)
    averager.restart()
    with pytest.raises(StateMismatch):
        averager.load_average({"stem.wait": torch.zeros(1)})
    assert averager.state_dict()["average_start"] == 6
    averager.load_average({}, steps=3)
    assert averager.steps == 3
    assert "average_start" not in averager.state_dict()


def test_weights_loaded_before_training_are_followed(make):
    """Pretrained weights that arrive after construction are not averaged away."""
    model = network(seed=0)
    optimizer = sgd(model)
    averager = make(model, optimizer)
    model.load_state_dict(network(seed=1).state_dict())
    assert_same(averager.averaged_state_dict(), copy_of(model.state_dict()))
    twin = network(seed=1)
    twin_optimizer = sgd(twin)
    expected = make(twin, twin_optimizer)
    for one, its_optimizer, its_averager in (
        (model, optimizer, averager),
        (twin, twin_optimizer, expected),
    ):
        epoch(one, its_optimizer, its_averager, 0)
    for name, _ in model.named_parameters():
        first, second = (a.averaged_state_dict()[name] for a in (averager, expected))
        assert torch.equal(first, second), name


def test_manual_updates_equal_hooked_ones(make):
    model, _, hooked = trained(make)
    other = network()
    optimizer = sgd(other)
    manual = make(other)
    for seed in range(2):
        for batch in batches(3, seed):
            train_step(other, optimizer, batch)
            manual.update()
        manual.end_epoch()
    assert_same(model.state_dict(), other.state_dict())
    assert_same(hooked.averaged_state_dict(), manual.averaged_state_dict())


def test_a_second_update_call_beside_the_hook_warns(make):
    model = network()
    averager = make(model, sgd(model))
    with pytest.warns(UserWarning, match="counts steps twice"):
        averager.update()


def test_a_bfloat16_shadow_follows_the_float32_one(make):
    model, _, exact = trained(make)
    other, _, half = trained(lambda *args: make(*args, dtype=torch.bfloat16))
    kept = half.state_dict()["shadow"]
    assert kept["stem.weight"].dtype == torch.bfloat16
    assert kept["norm.running_mean"].dtype == torch.float32  # statistics stay exact
    first, second = exact.averaged_state_dict(), half.averaged_state_dict()
    assert second["stem.weight"].dtype == torch.float32
    if not half.active:
        assert_same(model.state_dict(), other.state_dict())
    for name in ("stem.weight", "body.weight"):
        torch.testing.assert_close(first[name], second[name], rtol=0.02, atol=0.01)
