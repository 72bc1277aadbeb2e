"""Output of a run: results store, run folder, weights, environment."""
