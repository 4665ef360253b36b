"""Errors shown to users: each message says what, where, why, and what to do about it."""

import signal

NOT_FINITE = "is not finite"
"""Phrase in the errors about losses or tensors that are NaN or infinite."""


class BenchError(ValueError):
    """Base of all errors caused by input rather than by a bug."""


class ConfigError(BenchError):
    """A configuration that cannot be run: unknown name, wrong type, contradictory options."""


class DataError(BenchError):
    """A data set that cannot be found or read, or a partition that cannot be made."""


class RunError(BenchError):
    """A run that cannot continue: non-finite loss, a checkpoint of another configuration, a damaged file."""


class Stopped(BaseException):
    """The process received a signal to stop; like ``KeyboardInterrupt``, not an ``Exception``.

    Args:
        number: the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.signal = signal.Signals(number)

    def __str__(self) -> str:
        return f"stopped by {self.signal.name}"


def words(error: BaseException) -> str:
    """Return an error's message, even if its ``__str__`` fails."""
    try:
        return str(error)
    except Exception:
        return "(its message cannot be read)"


def told(error: BaseException) -> str:
    """Return an error's message, preceded by its type unless it is a ``BenchError``."""
    return words(error) if isinstance(error, BenchError) else f"{type(error).__name__}: {words(error)}"
