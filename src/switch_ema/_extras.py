"""Says in one sentence what to install where a library is missing."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needed(
    library: str | None,
    extra: str,
    *,
    user: str = "This",
    error: type[Exception] = ModuleNotFoundError,
) -> Iterator[None]:
    """Import ``library`` inside this block; if it is missing, name the extra.

    A module that the library itself fails to find is reported as it is.

    Args:
        library: the module's name, without what follows a dot; None for any.
        extra: what to install, such as ``"files"``.
        user: the subject of the sentence, what needs the library.
        error: the exception to raise.

    >>> with needed("no_such_library", extra="files"):
    ...     import no_such_library
    Traceback (most recent call last):
    ModuleNotFoundError: This needs no_such_library: pip install "switch-ema[files]".
    """
    try:
        yield
    except ModuleNotFoundError as missing:
        name = (missing.name or "").split(".")[0]
        if not name or library not in (None, name):
            raise
        raised = error(missing_extra(name, extra, user))
        if isinstance(raised, ImportError):
            raised.name = name
        raise raised from None


def missing_extra(library: str, extra: str, user: str = "This") -> str:
    """Return the sentence."""
    return f'{user} needs {library}: pip install "switch-ema[{extra}]".'
