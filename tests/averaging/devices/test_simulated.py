"""The contract of all methods, and more, on a device that is not the CPU."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.averaging.devices.simulated import NAME

ROOT = Path(__file__).parents[3]


@pytest.mark.timeout(900)  # half a minute of work, on a machine that may be busy
@pytest.mark.parametrize(
    ("file", "least"),
    [
        ("tests/averaging/test_contract.py", 400),
        ("tests/averaging/devices/on_simulated.py", 60),
    ],
)
def test_on_the_simulated_device(file, least):
    """In a process of its own, since torch cannot unregister a device."""
    plugins = ("-p", "tests.averaging.devices.simulated", "-p", "no:cacheprovider")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--tb=short", *plugins, file],
        cwd=ROOT,
        env=os.environ | {"SWITCH_EMA_TEST_DEVICE": NAME, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    summary = done.stdout.splitlines()[-1]
    passed = re.match(r"(\d+) passed", summary)
    assert passed, summary
    assert int(passed[1]) >= least
    assert "skipped" not in summary
