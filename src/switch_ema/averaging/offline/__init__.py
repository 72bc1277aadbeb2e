"""Averages of files: soups, profiles, synthesis, export."""
