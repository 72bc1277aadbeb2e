"""Says in one sentence what to install where a library is missing."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needed(library: str, extra: str) -> Iterator[None]:
    """Import ``library`` inside this block; if it is missing, name the extra.

    A module that the library itself fails to find is its own trouble and is reported
    as it is.

    >>> with needed("no_such_library", extra="files"):
    ...     import no_such_library
    Traceback (most recent call last):
    ModuleNotFoundError: This needs no_such_library: pip install "switch-ema[files]".
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != library:
            raise
        message = f'This needs {library}: pip install "switch-ema[{extra}]".'
        raise ModuleNotFoundError(message, name=library) from None
