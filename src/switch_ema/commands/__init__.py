"""The commands, one class each; its fields are the flags.

Code that trains or draws is imported when a command runs: help and flag errors need
no torch.
"""
