"""Text files, read whole: what is wrong with one is said with its line."""

from pathlib import Path

from switch_ema.bench.errors import UsageError


def read_text(path: Path) -> str:
    """Read a file that must be UTF-8 and hold something.

    Raises:
        UsageError: The file is missing, empty, or has bytes that are not UTF-8; the
            message names the line.
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
        raise UsageError(f"{path} is empty: it must hold text, from line 1 on.")
    return text
