"""Settings of a landscape."""

from dataclasses import dataclass

from switch_ema.bench.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class LandscapeSettings:
    """Resolution and range of a landscape."""

    points: int = 41
    """Points along a line; odd, to include the weights themselves."""
    side: int = 25
    """Points along each side of the plane."""
    reach: float = 1.0
    """Length of the random direction, relative to the weights."""
    batches: int = 64
    """Maximum number of training batches for the loss."""
    seed: int = 0
    """Seed of the random directions."""
    sharpness: bool = True
    """Measure curvature, the slowest part for large models."""
    recompute_norm: bool = False
    """Recompute batch-norm statistics at every point."""

    def __post_init__(self) -> None:
        for name, least in (("points", 3), ("side", 3), ("batches", 1)):
            if getattr(self, name) < least:
                raise UsageError(
                    f"{name} must be at least {least}, got {getattr(self, name)}."
                )
        if not self.reach > 0:
            raise UsageError(f"reach must be above 0, got {self.reach}.")
