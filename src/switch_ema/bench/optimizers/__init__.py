"""Optimizers and learning-rate schedules by name, and one step of any of them.

They lie below the tasks because a task makes its own optimizer: the training procedures
and fine-tuning name theirs. The training loop, above, makes one if the command line
names it.
"""
