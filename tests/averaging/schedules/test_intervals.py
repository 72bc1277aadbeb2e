"""When the schedules say that it is time."""

import pytest

from switch_ema import Epochs, Steps, SwitchEMA
from switch_ema.averaging.schedules.intervals import Position, as_schedule
from tests.averaging.helpers import scalar_model


def due(schedule, steps_per_epoch, epochs, known=True):
    """(epoch, step) of each due point; step None is the end of an epoch."""
    seen = []
    for epoch in range(epochs):
        length = steps_per_epoch if known or epoch else None
        for step in range(1, steps_per_epoch + 1):
            here = Position(epoch * steps_per_epoch + step, epoch, step, length)
            if schedule.due_after_step(here):
                seen.append((epoch, step))
        end = Position((epoch + 1) * steps_per_epoch, epoch + 1, 0, steps_per_epoch)
        if schedule.due_after_epoch(end):
            seen.append((epoch, None))
    return seen


@pytest.mark.parametrize(
    ("every", "expected"),
    [
        (1, [(0, None), (1, None), (2, None)]),
        (2, [(1, None)]),
        (0.5, [(0, 5), (0, None), (1, 5), (1, None), (2, 5), (2, None)]),
        (1.5, [(1, 5), (2, None)]),
        (0.6, [(0, 6), (1, 2), (1, 8), (2, 4), (2, None)]),
        (Steps(7), [(0, 7), (1, 4), (2, 1), (2, 8)]),
        ("7it", [(0, 7), (1, 4), (2, 1), (2, 8)]),
        ("0.6ep", [(0, 6), (1, 2), (1, 8), (2, 4), (2, None)]),
        ("2 ep", [(1, None)]),
        (lambda epoch: epoch == 2, [(1, None)]),
    ],
)
def test_due_points_over_three_epochs_of_ten_steps(every, expected):
    assert due(as_schedule(every), 10, 3) == expected


def test_points_inside_an_epoch_fall_on_the_next_step():
    # 3 steps per epoch, every half epoch: 1.5 steps -> after the second
    assert due(Epochs(0.5), 3, 1) == [(0, 2), (0, None)]


def test_an_epoch_of_unknown_length_has_no_points_inside():
    assert due(Epochs(0.5), 4, 2, known=False) == [(0, None), (1, 2), (1, None)]


def test_start_and_stop_bound_every_schedule():
    assert due(as_schedule(1, start=1, stop=2), 4, 4) == [(1, None)]
    window = as_schedule(Steps(2), start=4, stop=8)
    assert due(window, 4, 3) == [(1, 2), (1, 4)]
    half = as_schedule(0.5, start=0.5, stop=1.5)
    assert due(half, 4, 3) == [(0, None), (1, 2)]


@pytest.mark.parametrize("bad", [0, -1, float("inf"), float("nan"), None, "1"])
def test_intervals_out_of_range(bad):
    with pytest.raises(ValueError, match=r"switch_every must be a number"):
        SwitchEMA(scalar_model(), switch_every=bad)


@pytest.mark.parametrize("bad", [0, -3, 1.5, True])
def test_steps_out_of_range(bad):
    with pytest.raises(ValueError, match="Steps must be a whole number of at least 1"):
        Steps(bad)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"switch_start": -1}, "switch_start must be at least 0, got -1"),
        ({"switch_start": 5, "switch_stop": 5}, "switch_stop must be None or above"),
    ],
)
def test_windows_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        SwitchEMA(scalar_model(), **options)


def test_epochs_of_changing_length_use_the_last_one():
    sema = SwitchEMA(scalar_model(), switch_every=0.5)
    lengths, inside = [4, 8, 8, 4], []
    for length in lengths:
        for step in range(1, length + 1):
            before = sema.switches
            sema.update()
            if sema.switches > before:
                inside.append(step)
        assert sema.end_epoch()
    assert inside == [2, 4, 4]  # by 4 steps, then 8; the last is over before its middle


@pytest.mark.parametrize(
    ("interval", "length", "epochs"), [(0.4, 3, 10), (0.3, 4, 20), (0.7, 5, 20)]
)
def test_no_fraction_of_an_epoch_is_lost_at_its_end(interval, length, epochs):
    """Multiples that the last step of an epoch reaches count at its end."""
    schedule, acted = Epochs(interval), 0
    for epoch in range(epochs):
        for step in range(1, length + 1):
            position = Position(epoch * length + step, epoch, step, length)
            acted += schedule.due_after_step(position)
        position = Position((epoch + 1) * length, epoch + 1, 0, length)
        acted += schedule.due_after_epoch(position)
    assert acted == int(epochs / interval + 1e-9)


@pytest.mark.parametrize("bad", ["100", "0it", "1.5it", "0ep", "10%", "soon", ""])
def test_other_texts_are_refused(bad):
    with pytest.raises(ValueError, match="switch_every must be a number of epochs, or"):
        SwitchEMA(scalar_model(), switch_every=bad)
