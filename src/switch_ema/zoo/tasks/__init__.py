"""The tasks, listed in registry.py."""
