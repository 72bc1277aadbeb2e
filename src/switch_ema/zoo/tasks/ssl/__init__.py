"""Self-supervised learning: pre-training without labels, measured by a probe."""
