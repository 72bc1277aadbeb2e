"""Random sequences of operations, a few for each method and kernel.

``make chaos`` runs 10,000 of them.
"""

import pytest
import torch

from switch_ema.averaging.kernels import rounding
from switch_ema.averaging.registry import METHODS
from switch_ema.averaging.shadow.shadow import Shadow
from tests.averaging.sequences import Difference, run_sequence


@pytest.mark.parametrize("method", METHODS)
def test_a_method_is_where_the_oracle_is(method, arithmetic):
    for seed in range(6):
        run_sequence(method, arithmetic, seed)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("use", ["look", "save", "step", "skipped_step"])
def test_each_average_restarts_a_grown_buffer_when_it_is_next_used(
    method, use, arithmetic
):
    grown = "step", "end_epoch", "grow_cache", use, "change_buffers"
    for seed in range(2):
        run_sequence(
            method, arithmetic, seed, *grown, "step", "end_epoch", buffers="average"
        )


def test_a_cast_before_the_first_step_loads_no_weights(arithmetic):
    operations = "attach", "nudge", "look", "change_buffers", "cast_part"
    for seed in range(20):
        run_sequence("ema", arithmetic, seed, *operations, buffers="average")


def average_without(self, weight, step, in_step=False):
    """Count the step and leave the average as it is."""
    self._copies_are_stale = True


@pytest.mark.parametrize(
    ("method", "name", "fault"),
    [
        ("ema", "average_", average_without),
        ("lookahead", "write_", lambda self, live_share=0.0: None),
        ("swa", "read_", lambda self: None),
        ("posthoc-ema", "_copy_what_is_not_averaged", lambda self: None),
    ],
)
def test_a_fault_is_noticed(method, name, fault, monkeypatch):
    monkeypatch.setattr(Shadow, name, fault)
    with pytest.raises(Difference, match=method):
        for seed in range(20):
            run_sequence(method, "torch", seed)


def test_a_missed_update_of_a_bfloat16_shadow_is_noticed(monkeypatch):
    monkeypatch.setattr(rounding, "lerp_dithered_", lambda *arguments: None)
    with pytest.raises(Difference, match="ema"):
        for seed in range(20):
            run_sequence("ema", "torch", seed, dtype=torch.bfloat16)
