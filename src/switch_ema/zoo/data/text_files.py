"""Text files, read whole or line by line; errors give the line number."""

from collections.abc import Iterator
from pathlib import Path

from switch_ema.bench.errors import UsageError


def read_text(path: Path) -> str:
    """Read a non-empty UTF-8 file.

    Raises:
        UsageError: The file is missing, empty or not UTF-8; the message gives the
            line.
    """
    return "".join(read_lines(path))


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a non-empty UTF-8 file, with their ends.

    Raises:
        UsageError: As :func:`read_text` does, after the lines before the error.
    """
    empty = True
    try:
        with path.open("rb") as file:
            for number, content in enumerate(file, start=1):
                line = _decoded(content, path, number)
                empty = empty and not line.strip()
                yield line
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None
    if empty:
        raise UsageError(f"{path} is empty; it must contain text.")


def _decoded(content: bytes, path: Path, line: int) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        found = f"0x{content[error.start]:02x}"
        raise UsageError(
            f"{path}, line {line}: the text must be UTF-8, got the byte {found}."
        ) from None
