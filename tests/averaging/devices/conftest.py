"""Leave out what an older torch cannot simulate.

Before 2.10 (2.7 was tried) fake CUDA tensors ask CUDA's driver, and there are no
devices written in Python.
"""

import torch

VERSION = tuple(map(int, torch.__version__.split(".")[:2]))
collect_ignore = ["test_fake_cuda.py", "test_simulated.py"] if VERSION < (2, 10) else []
