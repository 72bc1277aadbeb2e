"""Averaging at each optimizer step: hooks, and optimizers that average in the step."""
