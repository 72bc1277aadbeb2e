"""The best average: when it is returned, kept, resumed and shared by processes."""

import copy
import errno
import io
import math

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from switch_ema import EMA, SWA, Best, StateMismatch, SwitchEMA, constant
from tests.averaging.distributed.processes import run
from tests.averaging.helpers import (
    assert_same,
    copy_of,
    epoch,
    move,
    network,
    nudge,
    scalar_model,
    sgd,
)


def followed(scores, **options):
    """An average that is the epoch's number, with a score for each."""
    model = scalar_model()
    ema = EMA(model, decay=lambda n: 0.0)
    best = Best(ema, **options)
    for number, score in enumerate(scores, start=1):
        move(model, float(number))
        ema.update()
        best.update(score)
    return best


def chosen(best) -> float:
    return best.averaged_state_dict()["weight"].item()


# With n = 100, the standard error is 0.04 at 0.8 and 0.03 at 0.9.
@pytest.mark.parametrize(
    ("scores", "epoch"),
    [
        ((0.5, 0.9, 0.8), 2),  # worse by 0.1
        ((0.5, 0.84, 0.81), 3),  # within one error
        ((0.5, 0.6, 0.7), 3),
        ((0.9, 0.9, 0.5), 1),  # the first of equals
        ((0.5, math.nan, 0.4), 1),
        ((0.5, 0.9, math.nan), 2),
        ((math.nan, math.nan), 2),
    ],
)
def test_the_best_is_returned_where_the_last_is_worse_by_more_than_an_error(
    scores, epoch
):
    best = followed(scores, higher_is_better=True, n=100)
    assert chosen(best) == best.chosen_epoch == epoch


def test_no_epoch_is_chosen_before_the_first_score():
    assert followed((), higher_is_better=True, n=100).chosen_epoch is None


@pytest.mark.parametrize(
    ("error", "epoch"), [(0.0, 2), (0.2, 2), (0.35, 3)], ids=["none", "small", "large"]
)
def test_lower_may_be_better_with_an_error_of_its_own(error, epoch):
    best = followed((3.0, 2.0, 2.3), higher_is_better=False, error=error)
    assert chosen(best) == epoch
    assert best.best_epoch == 2


def test_training_goes_on_and_the_live_weights_come_back():
    best = followed((0.9, 0.1), higher_is_better=True, n=100)
    model = best.averager._model
    with best.averaged() as shown:
        assert shown is model and model.weight.item() == 1
        with best.averager.averaged():
            assert model.weight.item() == 2
        assert model.weight.item() == 1
    assert model.weight.item() == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "exactly one of n and error"),
        ({"n": 10, "error": 0.1}, "exactly one of n and error"),
        ({"n": 0}, "n must be a whole number"),
        ({"error": -1.0}, "error must be a number above 0"),
    ],
)
def test_bad_arguments_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Best(EMA(scalar_model()), higher_is_better=True, **options)


def test_scores_in_percent_are_refused_with_a_hint():
    best = Best(EMA(scalar_model()), higher_is_better=True, n=100)
    with pytest.raises(ValueError, match="pass error instead of n"):
        best.update(93.5)
    assert best.scores == []


def test_before_there_is_an_average_the_live_weights_are_kept():
    model = network()
    swa = SWA(model, start=5)
    best = Best(swa, higher_is_better=True, n=10)
    live = copy_of(model.state_dict())
    best.update(0.9)
    nudge(model)
    best.update(0.1)
    assert_same(best.averaged_state_dict(), live)


SCORES = (0.5, 0.8, 0.6, 0.9, 0.2, 0.3)


@pytest.mark.parametrize("stop", [1, 3, 4, 5])
@pytest.mark.parametrize("on_disk", [False, True])
def test_killed_and_resumed_it_gives_the_same_weights_bit_for_bit(
    stop, on_disk, tmp_path
):
    """One epoch more than the checkpoint knows is trained before the kill."""

    def make(folder, model):
        optimizer = sgd(model)
        sema = SwitchEMA(model, optimizer, decay=constant(0.8))
        options = {"folder": folder} if on_disk else {}
        best = Best(sema, higher_is_better=True, n=50, **options)
        return model, optimizer, sema, best

    def train(parts, first, last):
        model, optimizer, sema, best = parts
        for seed in range(first, last):
            epoch(model, optimizer, sema, seed)
            best.update(SCORES[seed])

    whole = make(tmp_path / "whole", network())
    train(whole, 0, len(SCORES))
    parts = make(tmp_path / "killed", network())
    train(parts, 0, stop)
    file = io.BytesIO()
    torch.save([part.state_dict() for part in parts], file)
    train(parts, stop, stop + 1)
    file.seek(0)
    again = make(tmp_path / "killed", network(seed=3))
    for part, state in zip(again, torch.load(file, weights_only=True), strict=True):
        part.load_state_dict(state)
    train(again, stop, len(SCORES))
    assert again[3].best_epoch == whole[3].best_epoch == 4
    assert whole[3].is_better_than_last
    assert_same(again[0].state_dict(), whole[0].state_dict())
    assert_same(again[3].averaged_state_dict(), whole[3].averaged_state_dict())


def test_files_that_nobody_needs_are_deleted(tmp_path):
    best = followed((0.1, 0.2, 0.3), higher_is_better=True, n=9, folder=tmp_path)
    (path,) = tmp_path.iterdir()
    assert path.name.endswith("-epoch000003-rank0.pt")
    state = best.state_dict()
    assert state["average"] == {}
    path.unlink()
    with pytest.raises(StateMismatch, match="is missing"):
        best.load_state_dict(state)


def step(best, to: float, score: float) -> None:
    move(best.averager._model, to)
    best.averager.update()
    best.update(score)


def test_a_full_disk_leaves_the_best_before_it(tmp_path, monkeypatch):
    best = followed((0.1, 0.5), higher_is_better=True, n=9, folder=tmp_path)
    before = best.state_dict()

    def write(content, path):
        path.write_bytes(b"half of it")
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full, pytest.raises(OSError, match="No space left"):
        full.setattr(torch, "save", write)
        step(best, 3.0, 0.9)
    assert best.state_dict() == before
    assert len(list(tmp_path.iterdir())) == 1
    step(best, 4.0, 0.1)
    assert best.best_epoch == 2 and chosen(best) == 2
    step(best, 5.0, 0.9)  # and the next best is kept again
    step(best, 6.0, 0.1)
    assert best.best_epoch == 4 and chosen(best) == 5


def test_two_in_one_folder_keep_their_own_weights(tmp_path):
    first, second = (
        Best(
            EMA(scalar_model(), decay=lambda n: 0.0),
            higher_is_better=True,
            n=100,
            folder=tmp_path,
        )
        for _ in range(2)
    )
    for number, scores in enumerate([(0.9, 0.1), (0.2, 0.9), (0.3, 0.3)], start=1):
        step(first, number, scores[0])
        step(second, -number, scores[1])
    assert (chosen(first), chosen(second)) == (1, -2)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("how", ["state", "copy"])
def test_two_that_go_on_from_one_keep_their_own_weights(how, tmp_path):
    first = followed((0.5, 0.6), higher_is_better=True, n=100, folder=tmp_path)
    if how == "copy":
        second = copy.deepcopy(first)
    else:
        second = followed((), higher_is_better=True, n=100, folder=tmp_path)
        second.load_state_dict(first.state_dict())
    step(first, 3.0, 0.9)
    for _ in range(3):
        first.state_dict()
    step(first, 4.0, 0.95)
    step(first, 5.0, 0.1)
    step(second, -3.0, 0.1)
    assert (chosen(first), chosen(second)) == (4, 2)
    step(second, -4.0, 0.9)
    step(second, -5.0, 0.1)
    assert (chosen(first), chosen(second)) == (4, -4)


def test_files_of_a_killed_training_are_deleted_by_the_one_that_resumes(tmp_path):
    best = followed((0.1, 0.2), higher_is_better=True, n=9, folder=tmp_path)
    state = best.state_dict()
    step(best, 3.0, 0.5)  # is not in the state
    del best
    again = followed((), higher_is_better=True, n=9, folder=tmp_path)
    again.load_state_dict(state)
    step(again, 4.0, 0.6)
    for _ in range(2):
        again.state_dict()
    step(again, 5.0, 0.7)
    names = sorted(path.name.split("-", 2)[2] for path in tmp_path.iterdir())
    assert names == ["epoch000003-rank0.pt", "epoch000004-rank0.pt"]


@pytest.mark.parametrize("run", [None, 3, "../../00000000", "0123456789ab"])
def test_a_state_names_none_but_the_files_of_its_folder(run, tmp_path):
    best = followed((0.1, 0.2), higher_is_better=True, n=9, folder=tmp_path / "in")
    with pytest.raises(StateMismatch, match=r"run is|is missing"):
        best.load_state_dict(best.state_dict() | {"run": run})


@pytest.mark.parametrize(
    "change",
    [
        {"scores": 3},
        {"scores": ["a"]},
        {"best": 7},
        {"best": "x"},
        {"average": {"other": torch.zeros(1)}},
        {"average": 3},
    ],
)
def test_states_that_do_not_fit_change_nothing(change):
    best = followed((0.9, 0.2), higher_is_better=True, n=100)
    state = best.state_dict()
    with pytest.raises(StateMismatch):
        best.load_state_dict(state | change)
    with pytest.raises(StateMismatch, match="not the state_dict"):
        best.load_state_dict({"scores": []})
    assert best.scores == [0.9, 0.2]
    assert chosen(best) == 1


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("is_resumed", [False, True])
def test_the_copy_follows_a_changed_model(on_disk, is_resumed, tmp_path):
    """What was frozen at the best epoch is shown as it was then."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.BatchNorm1d(2))
    model[0].requires_grad_(False)
    ema = EMA(model, include="trainable", decay=constant(0.5))
    options = {"higher_is_better": True, "n": 100}
    if on_disk:
        options["folder"] = tmp_path
    best = Best(ema, **options)
    nudge(model[1])
    ema.update()
    best.update(0.9)
    expected = ema.averaged_state_dict()
    model[0].requires_grad_(True)
    model.append(nn.Linear(2, 1))
    del model[2]
    ema.refresh()
    new = copy_of(model[2].state_dict())
    for _ in range(2):
        nudge(model)
        ema.update()
    ema.refresh()
    best.update(0.1)
    if is_resumed:
        state, best = best.state_dict(), Best(ema, **options)
        best.load_state_dict(state)
    shown = best.averaged_state_dict()
    for name, value in shown.items():
        layer, key = name.split(".")
        assert torch.equal(value, new[key] if layer == "2" else expected[name])


def _train_ranks(how, folder):
    """Ranks that measure differently; rank 0's score counts for all."""
    rank = torch.distributed.get_rank()
    model = network()
    if how == "ddp":
        model = DistributedDataParallel(model)
    if how == "fsdp":
        model.scale = nn.Parameter(torch.ones(1))  # FSDP2 takes no scalars
        fully_shard(model)
    optimizer = sgd(model)
    ema = EMA(model, optimizer, decay=constant(0.5))
    best = Best(ema, higher_is_better=True, n=50, folder=folder)
    averages = []
    for seed, score in enumerate((0.3, 0.9, 0.1)):
        epoch(model, optimizer, ema, seed)
        averages.append(ema.averaged_state_dict(full=True))
        best.update(score if rank == 0 else 1 - score)
    state = best.state_dict()
    best.load_state_dict(state)
    return best.scores, averages[1], best.averaged_state_dict(full=True)


@pytest.mark.parametrize(("how", "on_disk"), [("ddp", False), ("fsdp", True)])
def test_all_ranks_keep_the_same_epoch(how, on_disk, tmp_path):
    (scores, second, found), (other, _, _) = run(
        2, _train_ranks, how, tmp_path if on_disk else None
    )
    assert scores == other == [0.3, 0.9, 0.1]
    assert_same(found, second)
