"""Averaging beside an untouched loop, against the loop that calls ``end_epoch``."""

import copy
import itertools

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from switch_ema import EMA, METHODS, attach, constant, create_averager
from tests.averaging.helpers import assert_same, batches, network, sgd, train_step

DATA = list(batches(4))


def fresh():
    model = network()
    return model, sgd(model)


def attached(loader=DATA, method="switch-ema", **options):
    model, optimizer = fresh()
    loader = attach(optimizer, loader, model=model, method=method, **options)
    return model, optimizer, loader


def train(model, optimizer, loader, stop=None):
    for batch in itertools.islice(loader, stop):
        train_step(model, optimizer, batch)


def plain_loop(lengths, method="switch-ema", **options):
    """Train by hand: in each epoch the first batches, then ``end_epoch``."""
    model, optimizer = fresh()
    averager = create_averager(method, model, optimizer, **options)
    for length in lengths:
        train(model, optimizer, DATA[:length])
        averager.end_epoch()
    return averager


def counts(averager):
    return averager.steps, averager.epochs, averager.switches


def assert_equal_runs(first, second):
    assert counts(first) == counts(second)
    assert_same(first.live_state_dict(), second.live_state_dict())
    assert_same(first.averaged_state_dict(), second.averaged_state_dict())


def checkpoint(model, optimizer, loader):
    parts = model, optimizer, loader.averager
    return copy.deepcopy([part.state_dict() for part in parts])


def restore(saved, model, optimizer, loader):
    for part, state in zip((model, optimizer, loader.averager), saved, strict=True):
        part.load_state_dict(state)


@pytest.mark.parametrize("method", sorted(set(METHODS) - {"posthoc-ema"}))
def test_equals_the_loop_with_end_epoch(method):
    model, optimizer, loader = attached(method=method)
    for _ in range(3):
        train(model, optimizer, loader)
    assert_equal_runs(loader.averager, plain_loop([4, 4, 4], method))


def test_the_loop_is_left_with_the_switch_done():
    model, optimizer, loader = attached(decay=constant(0.9))
    train(model, optimizer, loader)
    averager = loader.averager
    assert_same(averager.live_state_dict(), averager.averaged_state_dict())


def test_options_reach_the_method():
    model, optimizer, loader = attached(
        decay=constant(0.9), switch_every=2, buffers="copy"
    )
    for _ in range(4):
        train(model, optimizer, loader)
    expected = plain_loop([4] * 4, decay=constant(0.9), switch_every=2, buffers="copy")
    assert expected.switches == 2
    assert_equal_runs(loader.averager, expected)


def test_a_pass_that_is_broken_off_ends_when_the_next_one_starts():
    model, optimizer, loader = attached()
    for batch in loader:
        train_step(model, optimizer, batch)
        if loader.averager.steps == 2:
            break
    assert counts(loader.averager) == (2, 0, 0)
    train(model, optimizer, loader)
    assert_equal_runs(loader.averager, plain_loop([2, 4]))


def test_broken_off_at_its_first_batch_and_held_in_a_variable():
    model, optimizer, loader = attached()
    for length in (1, 2, 4):
        held = iter(loader)
        for _ in range(length):
            train_step(model, optimizer, next(held))
    assert loader.averager.epochs == 2
    assert next(held, None) is None  # the loop asks once more
    assert_equal_runs(loader.averager, plain_loop([1, 2, 4]))


def test_the_last_epoch_broken_off_can_be_ended_by_hand():
    model, optimizer, loader = attached()
    train(model, optimizer, loader, stop=2)
    loader.averager.end_epoch()
    train(model, optimizer, loader)
    assert_equal_runs(loader.averager, plain_loop([2, 4]))


def test_a_step_after_the_break_belongs_to_the_epoch_broken_off():
    model, optimizer, loader = attached()
    train(model, optimizer, loader, stop=2)
    train_step(model, optimizer, DATA[2])
    train(model, optimizer, loader)
    assert_equal_runs(loader.averager, plain_loop([3, 4]))


def test_passes_without_a_step_are_no_epochs():
    model, optimizer, loader = attached()
    held = iter(loader)
    next(held)  # the usual look at the first batch, kept
    for _ in loader:  # such as statistics of the data
        pass
    train(model, optimizer, loader)
    next(iter(loader))
    with loader.averager.averaged():
        list(loader)
    train(model, optimizer, loader)
    assert_equal_runs(loader.averager, plain_loop([4, 4]))


def test_an_evaluation_on_the_training_data_within_an_epoch():
    model, optimizer, loader = attached()
    for i, batch in enumerate(loader):
        train_step(model, optimizer, batch)
        if i == 1:
            list(loader)
            next(iter(loader))
            with loader.averager.averaged():
                list(loader)
    assert_equal_runs(loader.averager, plain_loop([4]))


def test_recalibration_on_the_attached_loader_between_epochs():
    model, optimizer, loader = attached()
    train(model, optimizer, loader, stop=2)
    loader.averager.recalibrate(loader)  # inside, the average is shown
    assert loader.averager.epochs == 0
    train(model, optimizer, loader)
    assert loader.averager.epochs == 2


@pytest.mark.parametrize("stop", [None, 2])
def test_a_resumed_run_equals_the_uninterrupted_one(stop):
    """From a checkpoint between epochs, or within one that is then completed."""
    model, optimizer, loader = attached(decay=constant(0.9))
    train(model, optimizer, loader)
    train(model, optimizer, loader, stop)
    saved = checkpoint(model, optimizer, loader)
    model, optimizer, loader = attached(decay=constant(0.9))
    restore(saved, model, optimizer, loader)
    if stop:
        train(model, optimizer, loader.watch(DATA[stop:]))
    train(model, optimizer, loader)
    assert_equal_runs(loader.averager, plain_loop([4, 4, 4], decay=constant(0.9)))


def test_an_error_switches_nothing_and_a_loaded_checkpoint_forgets_it():
    model, optimizer, loader = attached()
    with pytest.raises(ZeroDivisionError):
        for i, batch in enumerate(loader):
            train_step(model, optimizer, batch)
            if i == 0:
                saved = checkpoint(model, optimizer, loader)
            if i == 2:
                1 / 0  # noqa: B018
    assert counts(loader.averager) == (3, 0, 0)
    restore(saved, model, optimizer, loader)
    train(model, optimizer, loader.watch(DATA[1:]))
    assert_equal_runs(loader.averager, plain_loop([4]))


def test_an_error_of_the_loader_comes_through():
    def failing():
        yield DATA[0]
        raise OSError("the disk is gone")

    model, optimizer, loader = attached(None)
    with pytest.raises(OSError, match="the disk is gone"):
        train(model, optimizer, loader.watch(failing()))
    train(model, optimizer, loader.watch(DATA))
    assert_equal_runs(loader.averager, plain_loop([1, 4]))


def test_an_average_that_is_not_finite_is_reported_from_the_loop():
    model, optimizer, loader = attached()
    with pytest.raises(FloatingPointError, match="not finite"):
        for batch in loader:
            train_step(model, optimizer, batch)
            with torch.no_grad():
                model.scale.fill_(float("nan"))
    assert loader.averager.epochs == 0


@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_loader_shows_its_length_attributes_and_order(workers):
    data = TensorDataset(torch.arange(10))

    def build():
        sampler = RandomSampler(data, generator=torch.Generator().manual_seed(3))
        return DataLoader(data, batch_size=4, sampler=sampler, num_workers=workers)

    _, _, loader = attached(build())
    assert len(loader) == 3
    assert loader.batch_size == 4
    assert isinstance(loader.sampler, RandomSampler)
    for mine, theirs in zip(loader, build(), strict=True):
        assert torch.equal(mine[0], theirs[0])
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = loader.no_such_thing


def test_without_a_model_the_parameters_of_the_optimizer_are_averaged():
    model, optimizer = fresh()
    loader = attach(optimizer, DATA, method="switch-ema", decay=constant(0.9))
    for _ in range(2):
        train(model, optimizer, loader)
    expected = plain_loop([4, 4], decay=constant(0.9), buffers="copy")
    live = expected.live_state_dict()
    assert_same(model.state_dict(), live)  # the same switches; buffers stay live
    average = expected.averaged_state_dict()
    own = loader.averager.averaged_state_dict()
    names = [name for name, _ in model.named_parameters()]
    assert list(own) == [f"group0.{i}" for i in range(len(names))]
    for value, name in zip(own.values(), names, strict=True):
        assert torch.equal(value, average[name])
    with loader.averager.averaged():
        assert_same(model.state_dict(), average)


def test_names_come_from_the_optimizer_where_it_knows_them():
    first, second = nn.Sequential(nn.Linear(2, 2)), nn.Linear(2, 1)
    named = torch.optim.SGD(first.named_parameters(), lr=0.1)
    average = attach(named, []).averager.averaged_state_dict()
    assert_same(average, dict(first.state_dict()))
    both = attach([named, torch.optim.SGD(second.parameters(), lr=0.1)])
    assert list(both.averager.averaged_state_dict()) == [
        "optimizer0.0.weight",
        "optimizer0.0.bias",
        "optimizer1.group0.0",
        "optimizer1.group0.1",
    ]


def test_a_copy_of_the_loader_can_be_made():
    _, _, loader = attached()
    assert len(copy.copy(loader)) == 4


def test_bad_input():
    model, optimizer = fresh()
    with pytest.raises(ValueError, match="method must be one of"):
        attach(optimizer, DATA, model, "sema")
    with pytest.raises(ValueError, match="needs an optimizer, got none"):
        attach(None, DATA)
    with pytest.raises(TypeError, match=r"optimizer must be a torch\.optim"):
        attach(model, DATA)
    with pytest.raises(TypeError, match="loader must be an iterable of batches"):
        attach(optimizer, nn.Sequential(model))
    without = attach(optimizer, model=model)
    with pytest.raises(
        TypeError, match="loader must be an iterable of batches, got int"
    ):
        without.watch(3)
    with pytest.raises(TypeError, match="was given no loader"):
        iter(without)


def test_the_default_leaves_the_training_as_it_is():
    model, optimizer = fresh()
    loader = attach(optimizer, DATA, model=model)
    plain, own = fresh()
    for _ in range(2):
        train(model, optimizer, loader)
        train(plain, own, DATA)
    assert type(loader.averager) is EMA
    assert counts(loader.averager) == (8, 2, 0)
    assert_same(model.state_dict(), plain.state_dict())
