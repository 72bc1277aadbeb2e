"""Shows the average in the model: exchange, swap, and batch-norm statistics."""
