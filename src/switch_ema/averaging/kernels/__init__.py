"""The arithmetic: torch's operations, rounding, and the kernels in C."""
