"""Settings for all tests."""

import importlib.util
import signal

import pytest
import torch

# The tests' tensors are tiny: a second thread only adds waiting.
torch.set_num_threads(1)

# A shell lets what it starts in the background ignore Ctrl-C, and so would the commands
# that the tests start and stop.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Import yapf, which MMEngine needs, before the workers of pytest-xdist start.

    At its first import it writes a cache to the user's home that another process can
    read while it is half-written.
    """
    if not hasattr(config, "workerinput") and importlib.util.find_spec("yapf"):
        importlib.import_module("yapf")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
