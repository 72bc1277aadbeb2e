"""Files that cannot be read: named, and left out up to a number that the user gives."""

from switch_ema.bench.errors import UsageError
from switch_ema.bench.text import counted

LEFT_OUT = "Left out"
"""Heading of the broken files among the facts of a training."""
_NAMED = 5
"""Files that a description names."""


class BrokenFile(UsageError):
    """Raised for a file that cannot be read, such as a truncated image."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} cannot be read: {reason.rstrip('.')}.")
        self.path, self.reason = path, reason.rstrip(".")


class BrokenFiles:
    """The broken files of a training's data, as they are found.

    Args:
        most: How many of them to leave out; one more is an error.
    """

    def __init__(self, most: int = 0) -> None:
        self.most = most
        self.found: dict[str, str] = {}
        """Why each file cannot be read."""

    def add(self, path: str, reason: str) -> None:
        """Record a broken file; raise UsageError if there are too many."""
        self.found[path] = reason
        if len(self.found) <= self.most:
            return
        if self.most == 0:
            raise UsageError(
                f"{path} cannot be read: {reason}; repair or remove it, or leave out "
                "up to N broken files with --skip-broken N."
            )
        raise UsageError(
            f"{len(self.found)} files cannot be read, more than --skip-broken "
            f"{self.most}; the last is {path}: {reason}."
        )

    def describe(self) -> str:
        """List the files that were left out; empty if there are none.

        >>> broken = BrokenFiles(most=2)
        >>> broken.add("a.jpg", "image file is truncated")
        >>> broken.describe()
        '1 broken file: a.jpg (image file is truncated)'
        """
        if not self.found:
            return ""
        shown = [f"{path} ({why})" for path, why in list(self.found.items())[:_NAMED]]
        more = len(self.found) - len(shown)
        rest = f" and {more} more" if more else ""
        files = counted(len(self.found), "broken file")
        return f"{files}: {', '.join(shown)}{rest}"
