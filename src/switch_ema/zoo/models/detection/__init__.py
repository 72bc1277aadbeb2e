"""Detectors of the paper's Tables 6 and 7, and their small versions."""
