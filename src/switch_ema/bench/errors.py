"""The exception for invalid user input."""


class UsageError(Exception):
    """Raised for invalid user input; the user sees only its message."""
