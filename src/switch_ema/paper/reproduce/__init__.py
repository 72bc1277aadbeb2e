"""Rows of the paper's tables: planned, trained and collected."""
