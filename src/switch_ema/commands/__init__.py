"""The commands, one class each; its fields are the flags.

What trains or draws is imported when a command is called, so that its help and a
mistake in its flags are answered without importing torch.
"""
