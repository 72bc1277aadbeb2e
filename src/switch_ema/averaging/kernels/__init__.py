"""Arithmetic on tensors: torch operations, rounding, and C kernels."""
