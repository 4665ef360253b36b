"""Errors shown to users: each message says what, where, why, and what to do about it."""

import difflib
import signal
from collections.abc import Iterable

NOT_FINITE = "is not finite"
"""What the error says of a run whose loss or tensors became NaN or infinite."""


class BenchError(ValueError):
    """Base of all errors that are the fault of the input, not of the code."""


class ConfigError(BenchError):
    """A configuration that cannot be run: unknown name, wrong type, contradictory options."""


class DataError(BenchError):
    """A data set that cannot be found or read, or a partition that cannot be made."""


class RunError(BenchError):
    """A run that cannot continue: non-finite loss, a checkpoint of another configuration, a damaged file."""


class Stopped(BaseException):
    """The process was asked to stop. Like ``KeyboardInterrupt``, it is no ``Exception``, so error handlers let it pass.

    Args:
        number: the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.signal = signal.Signals(number)

    def __str__(self) -> str:
        return f"stopped by {self.signal.name}"


def message_of(error: BaseException) -> str:
    """The error message, prefixed with its type unless it is one of ours."""
    return str(error) if isinstance(error, BenchError) else f"{type(error).__name__}: {error}"


def unknown(what: str, name: object, known: Iterable[str], more: str = "") -> ConfigError:
    """The error for a name that is not among ``known``; it suggests the closest one and lists all."""
    known = list(known)
    close = difflib.get_close_matches(str(name).lower(), known, n=1, cutoff=0.5)
    hint = f"; did you mean '{close[0]}'?" if close else "."
    return ConfigError(f"unknown {what} '{name}'{hint} Known: {', '.join(known) or 'none'}{more}")


def one_line(error: object) -> str:
    """A message without line breaks."""
    return " ".join(str(error).split())
