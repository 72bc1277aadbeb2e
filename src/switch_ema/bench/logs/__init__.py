"""Log files of any trainer: their values, methods and seeds."""
