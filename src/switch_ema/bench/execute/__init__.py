"""From cells to results: on this machine, in processes, or on a Ray cluster."""
