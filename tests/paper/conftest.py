"""The task that trains within a second, for rows of tables."""

from tests.bench.conftest import tiny

__all__ = ["tiny"]
