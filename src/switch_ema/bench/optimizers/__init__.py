"""Optimizers and learning-rate schedules by name, and one step of any of them.

This package is below the tasks because tasks create their own optimizers. The training
loop, above, creates one if the command line names it.
"""
