"""Console output of commands, and formatting of times."""

import logging
import re

import rich.console

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tab and line feed


def printable(text: str) -> str:
    """Replace control characters, which a terminal would obey, by question marks."""
    return CONTROL.sub("?", text)


def tell_downloads() -> None:
    """Let data sets say in this process's stderr what they download or encode, which may take minutes."""
    logging.getLogger("datamodules").setLevel(logging.INFO)
    if logging.lastResort is not None:
        logging.lastResort.setLevel(logging.INFO)


class Console(rich.console.Console):
    """Rich's console, but with a ``BrokenPipeError`` on a closed pipe, as with ``print``.

    Rich itself would exit silently with code 1.
    """

    def on_broken_pipe(self) -> None:
        """Re-raise the error caught by Rich; ``benchmark.cli`` handles it for every command."""
        raise


def duration(seconds: float) -> str:
    """Format a time for readers: ``45 s``, ``12 min``, ``3.5 h`` or ``2.1 days``."""
    if seconds < 100:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.0f} min"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.1f} days"
