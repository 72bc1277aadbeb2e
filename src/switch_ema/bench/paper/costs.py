"""What rows take."""

SECONDS: dict[str, dict[str, float]] = {}
START_SECONDS = 5.0
