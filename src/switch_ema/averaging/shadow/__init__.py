"""Where the average lives: tensors, their storage, their groups, their state."""
