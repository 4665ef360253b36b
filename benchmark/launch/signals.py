"""How processes end: by signals from a scheduler or a closed terminal, and together with those that started them.

``SIGTERM``, ``SIGUSR1`` and ``SIGHUP`` raise ``Stopped`` in the main thread, as Ctrl-C raises ``KeyboardInterrupt``.
The run saves its state at the end of the last round and exits with code 75: the same command continues from there. A
signal that is ignored, as ``SIGHUP`` is under ``nohup``, stays ignored.
"""

import multiprocessing
import os
import signal
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import FrameType

from datamodules.common.errors import Stopped

STOPPED = 75  # EX_TEMPFAIL of sysexits.h: try again
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)

_watched: tuple[signal.Signals, ...] = ()
_received: list[signal.Signals] = []


@contextmanager
def stoppable(*further: signal.Signals) -> Iterator[None]:
    """Let the first signal raise ``Stopped`` and ignore further ones, so that saving is not interrupted.

    Inside another such context, or outside the main thread (which alone may set signal handlers), it does nothing.

    Args:
        further: signals to treat like ``SIGNALS``.
    """
    global _watched
    if _watched or threading.current_thread() is not threading.main_thread():
        yield
        return
    _watched = tuple(number for number in (*SIGNALS, *further) if signal.getsignal(number) is not signal.SIG_IGN)
    handlers = {number: signal.signal(number, _raise) for number in _watched}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        _watched = ()
        _received.clear()


def _raise(number: int, frame: FrameType | None) -> None:
    for watched in _watched:
        signal.signal(watched, signal.SIG_IGN)
    _received.append(signal.Signals(number))
    if number == signal.SIGHUP:
        _leave_terminal()
    raise Stopped(number)


def _leave_terminal() -> None:
    """Redirect output from the terminal to nowhere: the terminal is gone, and writing to it fails."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        if stat.S_ISCHR(os.fstat(stream).st_mode):  # isatty is false once the terminal is gone
            os.dup2(nowhere, stream)
    os.close(nowhere)


def check_stopped() -> None:
    """Raise ``Stopped`` if a signal came and its exception was swallowed, as in a destructor, or is yet to come."""
    if _received:
        raise Stopped(_received[0])


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let a signal end the process even during a call that does not return to Python; nothing is saved.

    For the time when processes wait for each other, and there is nothing to save yet.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heeded = [number for number in (*SIGNALS, signal.SIGINT) if signal.getsignal(number) is not signal.SIG_IGN]
    handlers = {number: signal.signal(number, signal.SIG_DFL) for number in heeded}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextmanager
def stopping_children() -> Iterator[None]:
    """If the context ends with an error or a signal, stop the processes that it has started through
    ``multiprocessing``, and wait until they have ended.

    They may take as long as they need to save; whoever sent the signal sets the limit. A second Ctrl-C kills them.
    """
    before = set(multiprocessing.active_children())
    try:
        yield
    except BaseException as ended:
        started = set(multiprocessing.active_children()) - before
        try:
            for process in started:
                if process.is_alive() and process.pid is not None:
                    os.kill(process.pid, getattr(ended, "signal", signal.SIGTERM))
            for process in started:
                process.join()
        except BaseException:
            for process in started:
                process.kill()
            raise
        raise


@cache
def die_with_parent() -> None:
    """Watch the process that started this one from a thread, and exit as soon as it is gone.

    An orphan would keep its run locked, so that it could not be resumed. Further calls do nothing.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
