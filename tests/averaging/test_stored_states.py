"""State dicts that version 0.1.0 wrote: they resume to the weights it came to."""

from pathlib import Path

import pytest
import torch

from switch_ema import create_averager
from tests.averaging.resumed import OPTIONS, build, train

DATA = Path(__file__).with_name("data")


@pytest.mark.parametrize("method", OPTIONS)
def test_a_stored_state_resumes_to_the_same_weights(method, tmp_path):
    saved = torch.load(DATA / f"{method}.pt", weights_only=True)
    model, optimizer = build()
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    folder = {"folder": tmp_path} if method == "posthoc-ema" else {}
    averager = create_averager(method, model, optimizer, **OPTIONS[method], **folder)
    averager.load_state_dict(saved["averager"])
    train(model, optimizer, averager, saved["data"][2:4])
    train(model, optimizer, averager, saved["data"][4:])
    expected = saved["expected"]
    counts = averager.steps, averager.epochs, averager.switches
    assert counts == tuple(expected[name] for name in ("steps", "epochs", "switches"))
    for name, found in (
        ("live", averager.live_state_dict()),
        ("averaged", averager.averaged_state_dict()),
    ):
        # Equal but for the rounding of another processor.
        torch.testing.assert_close(found, expected[name], rtol=1e-12, atol=1e-12)
