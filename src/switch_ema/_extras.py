"""One-sentence errors that name the extra to install for a missing library."""

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

    If the library is installed but fails to import another module, that error is left
    unchanged.

    Args:
        library: name of the top-level module; None for any.
        extra: extra that installs it, such as ``"files"``.
        user: subject of the sentence: whatever needs the library.
        error: type of the exception to raise.

    >>> with needed("no_such_library", extra="files"):
    ...     import no_such_library
    Traceback (most recent call last):
    ModuleNotFoundError: This needs no_such_library: pip install "switch-ema[files]".
    """
    try:
        yield
    except ModuleNotFoundError as missing:
        name = (missing.name or "").split(".")[0]
        if name in ("", "switch_ema") or library not in (None, name):
            raise
        raised = error(missing_extra(name, extra, user))
        if isinstance(raised, ImportError):
            raised.name = name
        raise raised from None


def missing_extra(library: str, extra: str, user: str = "This") -> str:
    """Return the sentence that names the extra."""
    return f'{user} needs {library}: pip install "switch-ema[{extra}]".'
