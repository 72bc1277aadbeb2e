"""What to install when a library is missing."""

from collections.abc import Iterator
from contextlib import contextmanager

from switch_ema.bench.spec import UsageError


@contextmanager
def needs_analysis() -> Iterator[None]:
    """Turn a missing library of the extra ``analysis`` into one sentence."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise UsageError(
            f'this needs {error.name}: pip install "switch-ema[bench,analysis]".'
        ) from None
