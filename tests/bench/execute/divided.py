"""What a training by two workers shares with that of one process."""

import pytest


def assert_trained_as_one(two, one, told):
    """Two workers ended with the values of one process, and said how they divided."""
    assert two.status == "done"
    assert told[-1][0] == 3
    for metric, epochs in one.values["switch-ema"].items():
        found = two.values["switch-ema"][metric]
        assert found == [[pytest.approx(value, abs=1e-5)] for [value] in epochs]
    assert two.trained["Workers"].startswith("2, which took 4 each of the 8 examples")
