"""All methods, with both kinds of arithmetic: in C, and torch's without a compiler."""

import pytest

from switch_ema.averaging.kernels import native
from switch_ema.averaging.kernels.native import library
from switch_ema.averaging.registry import METHODS, create_averager
from tests.averaging.helpers import DEVICE, quick_options

KINDS = ["c", "torch"] if native.is_available() else ["torch"]
if DEVICE != "cpu":
    KINDS = KINDS[:1]  # both are torch's there


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


@pytest.fixture(params=METHODS)
def make(request, tmp_path):
    """A maker of averagers of one method, acting often enough to be seen."""
    quick = quick_options(tmp_path)

    def maker(model, optimizer=None, **options):
        return create_averager(
            request.param, model, optimizer, **quick[request.param], **options
        )

    return maker
