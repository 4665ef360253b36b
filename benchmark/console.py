"""Where commands print tables and progress."""

import rich.console


class Console(rich.console.Console):
    """Rich's console, except that a pipe that nobody reads is the error ``BrokenPipeError``, as it is for ``print``.

    Rich itself would end the program with code 1 and no word.
    """

    def on_broken_pipe(self) -> None:
        """Raise what Rich has caught; ``benchmark.cli`` handles it for every command."""
        raise
