"""Settings for all tests."""

import pytest
import torch

# The tests' tensors are tiny: a second thread only adds waiting.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
