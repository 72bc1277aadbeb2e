"""One scalar weight, worked out by hand: which step averages, which one switches."""

import pytest

from switch_ema import EMA, LAWA, PSWA, SWA, Lookahead, Steps, SwitchEMA, constant
from switch_ema.contrib import LiteralEq3
from tests.averaging.helpers import move, scalar_model, shadow, weight

pytestmark = pytest.mark.usefixtures("arithmetic")

approx = pytest.approx


def test_ema_halves_the_distance_at_decay_one_half():
    # live:    0 -> 8 -> 8 -> 8
    # shadow:  0 -> 4 -> 6 -> 7
    model = scalar_model(0.0)
    ema = EMA(model, decay=constant(0.5))
    seen = []
    for _ in range(3):
        move(model, 8.0)
        ema.update()
        seen.append(shadow(ema))
    assert seen == [4.0, 6.0, 7.0]
    assert weight(model) == 8.0


def test_update_every_two_uses_the_squared_decay():
    # live:    0 -> 8 -> 8 -> 8 -> 8      decay 0.5, every 2nd step with 0.25
    # shadow:  0 -> 0 -> 6 -> 6 -> 7.5    6 = 0.25*0 + 0.75*8, 7.5 = 0.25*6 + 0.75*8
    model = scalar_model(0.0)
    ema = EMA(model, decay=constant(0.5), update_every=2)
    seen = []
    for _ in range(4):
        move(model, 8.0)
        ema.update()
        seen.append(shadow(ema))
    assert seen == [0.0, 6.0, 6.0, 7.5]


def test_switch_ema_switches_after_every_epoch():
    # Each step adds 4 to the live weight; decay 0.5; 2 steps per epoch.
    # live:    0 -> 4 -> 8 | 5 -> 9 -> 13 | 10
    # shadow:  0 -> 2 -> 5 | 5 -> 7 -> 10 | 10        | is end_epoch: live = shadow
    model = scalar_model(0.0)
    sema = SwitchEMA(model, decay=constant(0.5))
    live, average = [], []
    for _ in range(2):
        for _ in range(2):
            move(model, weight(model) + 4)
            sema.update()
            live.append(weight(model))
            average.append(shadow(sema))
        assert sema.end_epoch() is True
        live.append(weight(model))
    assert live == [4.0, 8.0, 5.0, 9.0, 13.0, 10.0]
    assert average == [2.0, 5.0, 7.0, 10.0]
    assert sema.switches == 2


@pytest.mark.parametrize(
    ("options", "switched"),
    [
        ({}, [1, 2, 3, 4, 5, 6]),
        ({"switch_every": 2}, [2, 4, 6]),
        ({"switch_every": 2, "switch_start": 2}, [4, 6]),
        ({"switch_start": 3, "switch_stop": 5}, [4, 5]),
        ({"switch_every": lambda epoch: epoch in (1, 5)}, [1, 5]),
    ],
)
def test_epochs_that_switch(options, switched):
    sema = SwitchEMA(scalar_model(), **options)
    assert [e for e in range(1, 7) if sema.end_epoch()] == switched


def test_switch_every_three_steps_ignores_epochs():
    # live:    +4 each step; decay 0.5; after step 3 live = shadow
    # live:    4  8  12->8.5 |  12.5
    # shadow:  2  5  8.5     |  10.5
    model = scalar_model(0.0)
    sema = SwitchEMA(model, decay=constant(0.5), switch_every=Steps(3))
    live = []
    for _ in range(4):
        move(model, weight(model) + 4)
        sema.update()
        live.append(weight(model))
    assert live == [4.0, 8.0, 8.5, 12.5]
    assert sema.end_epoch() is False


def test_half_epochs_switch_in_the_middle_once_the_length_is_known():
    # 4 steps per epoch, T = 0.5: the first epoch only at its end, later also after 2.
    sema = SwitchEMA(scalar_model(), decay=constant(0.5), switch_every=0.5)
    seen = []
    for epoch in range(3):
        for step in range(1, 5):
            before = sema.switches
            sema.update()
            if sema.switches > before:
                seen.append((epoch, step))
        if sema.end_epoch():
            seen.append((epoch, "end"))
    assert seen == [(0, "end"), (1, 2), (1, "end"), (2, 2), (2, "end")]


def test_half_epochs_switch_in_the_first_epoch_too_if_told_its_length():
    sema = SwitchEMA(
        scalar_model(), decay=constant(0.5), switch_every=0.5, steps_per_epoch=4
    )
    for _ in range(2):
        sema.update()
    assert sema.switches == 1


def test_partial_switch_keeps_a_share_of_the_live_weights():
    # live 8, shadow 4 at decay 0.5; b = 0.25: 0.25*8 + 0.75*4 = 5; the shadow stays.
    model = scalar_model(0.0)
    sema = SwitchEMA(model, decay=constant(0.5), live_share=0.25)
    move(model, 8.0)
    sema.update()
    assert sema.end_epoch()
    assert (weight(model), shadow(sema)) == (5.0, 4.0)


def test_nothing_pending_is_flushed_at_a_switch():
    # update_every 2: step 3 is pending at the switch, live goes back to the average.
    # live:    8 -> 8 -> 100 | 6        shadow: 0 -> 6 -> 6 | 6
    model = scalar_model(0.0)
    sema = SwitchEMA(model, decay=constant(0.5), update_every=2)
    for value in (8.0, 8.0, 100.0):
        move(model, value)
        sema.update()
    sema.end_epoch()
    assert (weight(model), shadow(sema)) == (6.0, 6.0)


def test_swa_averages_epoch_ends_after_the_start():
    # epoch ends: 2, 4, 8, 12; start 1 leaves out the first: 4, (4+8)/2, (4+8+12)/3
    model = scalar_model(0.0)
    swa = SWA(model, start=1)
    seen = []
    for value in (2.0, 4.0, 8.0, 12.0):
        move(model, value)
        assert swa.end_epoch() is False
        seen.append(shadow(swa))
    assert seen == approx([2.0, 4.0, 6.0, 8.0])  # before the start: the live weights


def test_lawa_averages_the_last_two():
    # epoch ends 2, 4, 8 -> 2, 3, 6
    model = scalar_model(0.0)
    lawa = LAWA(model, k=2)
    seen = []
    for value in (2.0, 4.0, 8.0):
        move(model, value)
        lawa.end_epoch()
        seen.append(shadow(lawa))
    assert seen == [2.0, 3.0, 6.0]


def test_pswa_writes_the_mean_back_and_starts_again():
    # period 2, each epoch adds 4:  4, 8 -> mean 6 | 10, 14 -> mean 12
    model = scalar_model(0.0)
    pswa = PSWA(model, period=2)
    live = []
    for _ in range(4):
        move(model, weight(model) + 4)
        pswa.end_epoch()
        live.append(weight(model))
    assert live == [4.0, 6.0, 10.0, 12.0]
    assert shadow(pswa) == 12.0


def test_lookahead_goes_back_half_way_every_two_steps():
    # +1 each step, k = 2, alpha = 0.5:  0 -> 1 -> 2 (sync: 1) -> 2 -> 3 (sync: 2)
    model = scalar_model(0.0)
    lookahead = Lookahead(model, k=2, alpha=0.5)
    live = []
    for _ in range(4):
        move(model, weight(model) + 1)
        lookahead.update()
        live.append(weight(model))
    assert live == [1.0, 1.0, 2.0, 2.0]
    assert shadow(lookahead) == 2.0


def test_literal_eq3_scales_the_step_except_every_third():
    # Each optimizer step adds 8; d = 0.75: the live weights move by 2, every 3rd by 8
    # live:  0 -> 2 -> 4 -> 12 -> 14
    model = scalar_model(0.0)
    eq3 = LiteralEq3(model, decay=constant(0.75), every=Steps(3))
    live = []
    for _ in range(4):
        move(model, weight(model) + 8)
        eq3.update()
        live.append(weight(model))
    assert live == [2.0, 4.0, 12.0, 14.0]


def test_default_decay_follows_the_count():
    # count warm-up: d = 1/10, 2/11, ...; live 1: 1 - 0.1 = 0.9; 1 - 0.1 * 2/11
    model = scalar_model(0.0)
    sema = SwitchEMA(model)
    move(model, 1.0)
    sema.update()
    assert shadow(sema) == approx(0.9, abs=1e-12)
    sema.update()
    assert shadow(sema) == approx(1 - 0.1 * 2 / 11, abs=1e-12)
    assert sema.current_decay == 2 / 11
