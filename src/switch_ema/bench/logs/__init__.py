"""Log files of any trainer: what they hold, and whose training each of them is."""
