"""Why averaging helps, or does not: landscapes, sharpness, boundaries, calibration."""
