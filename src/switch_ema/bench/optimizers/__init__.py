"""Optimizers and learning-rate schedules by name."""
