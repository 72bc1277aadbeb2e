"""The task that trains within a second, for parts of the zoo."""

from tests.bench.conftest import tiny

__all__ = ["tiny"]
