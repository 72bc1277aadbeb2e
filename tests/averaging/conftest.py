"""Both kinds of arithmetic: the kernels in C, and torch's where no compiler is."""

import pytest

from switch_ema.averaging import native
from switch_ema.averaging.native import library

KINDS = ["c", "torch"] if native.is_available() else ["torch"]


@pytest.fixture
def without_compiler(monkeypatch):
    """Do as on a machine that has no C compiler."""
    monkeypatch.setattr(library, "library", lambda dtype: None)


@pytest.fixture(params=KINDS)
def arithmetic(request):
    """Run a test with each kind."""
    if request.param == "torch":
        request.getfixturevalue("without_compiler")
    return request.param
