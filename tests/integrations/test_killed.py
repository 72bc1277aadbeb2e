"""A training that is killed and started again ends as one that was left in peace."""

import multiprocessing
import signal

import pytest
import torch

import tests.averaging.distributed.processes  # noqa: F401  # says what the fork server imports
from tests.integrations import killed
from tests.integrations.helpers import EPOCHS, STEPS


@pytest.mark.parametrize("trainer", killed.TRAINERS)
def test_killed_and_resumed_equals_uninterrupted(tmp_path, trainer):
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=killed.run, args=(trainer, tmp_path))
    process.start()
    process.join()
    status = {file.stem: int(file.read_text()) for file in tmp_path.glob("*.status")}
    assert status == {"killed": -signal.SIGKILL, "resumed": 0, "whole": 0}
    resumed, whole = (
        torch.load(tmp_path / f"{name}.pt", weights_only=True)
        for name in ("resumed", "whole")
    )
    assert resumed["counts"] == whole["counts"] == (EPOCHS * STEPS, EPOCHS, EPOCHS)
    for weights in ("averaged", "live"):
        pairs = zip(whole[weights].items(), resumed[weights].items(), strict=True)
        for (name, expected), (other, found) in pairs:
            # A Keras model that was saved and loaded has other names.
            assert name == other or trainer == "Keras"
            assert torch.equal(expected, found), name
