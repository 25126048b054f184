"""The two errors a person meets, each with the exit code of its kind (0 done, 1 a check found a fault)."""


class ToolkitError(Exception):
    """Something a person can act on. The message says what was wrong, where, and what to do."""

    exit_code = 1


class InputError(ToolkitError):
    """The input is wrong: a file, a flag, a profile, a place on disk."""

    exit_code = 2


class EngineError(ToolkitError):
    """The engine failed: it did not start, died, or answered something that cannot be used."""

    exit_code = 3
