"""Tasks, networks, data sets and training procedures."""
