"""What is raised where the input of the user is wrong."""


class UsageError(Exception):
    """The input of the user is wrong; the message is all that is shown."""
