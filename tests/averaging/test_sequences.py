"""Random sequences of operations, a few for each method and kernel.

``make chaos`` runs 10,000 of them.
"""

import pytest

from switch_ema.averaging.registry import METHODS
from switch_ema.averaging.shadow.shadow import Shadow
from tests.averaging.sequences import Difference, run_sequence


@pytest.mark.parametrize("method", METHODS)
def test_a_method_is_where_the_oracle_is(method, arithmetic):
    for seed in range(6):
        run_sequence(method, arithmetic, seed)


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
