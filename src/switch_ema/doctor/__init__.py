"""Which weights a checkpoint holds, and whether its average is right."""
