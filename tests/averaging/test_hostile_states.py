"""State dicts that do not fit: one sentence, and nothing has changed."""

import copy

import pytest
import torch
from torch import nn

from switch_ema import StateMismatch
from tests.averaging.helpers import nudge
from tests.averaging.hostile import COUNTS, VALUES, unusual


def changes(state):
    for name in COUNTS:
        for value in VALUES:
            yield f"{name}={value!r}", {**state, name: value}
    for kind, tensor in unusual(state["shadow"]["weight"]):
        shadow = {**state["shadow"], "weight": tensor}
        yield f"shadow {kind}", {**state, "shadow": shadow}
    for value in (None, [], 7, {}):
        yield f"shadow={value!r}", {**state, "shadow": value}
    for name in state.keys() - {"method", "shadow", *COUNTS, "steps_per_epoch"}:
        for value in (None, -1, "x", [7.5], [{}]):
            yield f"{name}={value!r}", {**state, name: value}
        yield f"no {name}", {k: v for k, v in state.items() if k != name}


@pytest.mark.filterwarnings("ignore")
def test_a_hostile_state_changes_nothing(make):
    model = nn.Linear(3, 2)
    averager = make(model)
    for _ in range(2):
        nudge(model)
        averager.update()
        averager.end_epoch()
    good = copy.deepcopy(averager.state_dict())
    tried = 0
    for what, bad in changes(good):
        try:
            averager.load_state_dict(bad)
        except (StateMismatch, ValueError):
            tried += 1
            state = averager.state_dict()
            assert state.keys() == good.keys(), what
            for name, value in good.items():
                if name.startswith("shadow"):
                    for key, tensor in value.items():
                        assert torch.equal(state[name][key], tensor), (what, key)
                elif name != "snapshots":
                    assert state[name] == value, (what, name)
        else:
            averager.load_state_dict(good)
            assert what.endswith("[]"), what  # an empty list is a state, too
    assert tried >= 40
