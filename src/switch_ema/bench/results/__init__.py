"""What a run leaves: the store, the run folder, the weights, the environment."""
