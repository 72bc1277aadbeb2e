"""One cell to its values: the loop, its checks, its checkpoints."""
