"""The averaged copy of the weights: tensors, storage, groups and state."""
