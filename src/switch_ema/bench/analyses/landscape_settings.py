"""What a landscape measures, and how finely."""

from dataclasses import dataclass

from switch_ema.bench.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class LandscapeSettings:
    """What is measured, and how finely."""

    points: int = 41
    """Along a line; odd, so that one is at the weights themselves."""
    side: int = 25
    """Points along each side of the plane."""
    reach: float = 1.0
    """How far the random direction goes, in lengths of the weights."""
    batches: int = 64
    """Training batches that the loss is measured on, at most."""
    seed: int = 0
    """Seed of the random directions."""
    sharpness: bool = True
    """Measure curvature as well, which takes longest for large models."""
    recompute_norm: bool = False
    """Recompute the statistics of batch normalisation at every point."""

    def __post_init__(self) -> None:
        for name, least in (("points", 3), ("side", 3), ("batches", 1)):
            if getattr(self, name) < least:
                raise UsageError(
                    f"{name} must be at least {least}, got {getattr(self, name)}."
                )
        if not self.reach > 0:
            raise UsageError(f"reach must be above 0, got {self.reach}.")
