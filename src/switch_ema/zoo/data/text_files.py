"""Text files, read whole; errors give the line number."""

from pathlib import Path

from switch_ema.bench.errors import UsageError


def read_text(path: Path) -> str:
    """Read a non-empty UTF-8 file.

    Raises:
        UsageError: The file is missing, empty or not UTF-8; the message gives the
            line.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        found = f"0x{content[error.start]:02x}"
        raise UsageError(
            f"{path}, line {line}: the text must be UTF-8, got the byte {found}."
        ) from None
    if not text.strip():
        raise UsageError(f"{path} is empty; it must contain text.")
    return text
