"""Analyses of trained weights: landscapes and decision boundaries."""
