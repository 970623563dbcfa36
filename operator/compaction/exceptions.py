"""Every error the project raises on purpose, in one flat module.

A message names the object (file, index, job, policy) and says what to do; the command line prints it as it is.
"""


class CompactionError(Exception):
    """Base of all errors that are meant for a person to read."""
