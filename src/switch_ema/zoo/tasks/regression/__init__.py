"""Regression tasks."""
