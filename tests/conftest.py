"""Settings for all tests."""

import importlib.util

import pytest
import torch

# The tests' tensors are tiny: a second thread only adds waiting.
torch.set_num_threads(1)


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
