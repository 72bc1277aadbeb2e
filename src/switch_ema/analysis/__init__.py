"""Analyses of averaging: landscapes, sharpness, boundaries, calibration."""
