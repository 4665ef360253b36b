"""Signals that ask a program to stop: of a scheduler that takes the machine away, or of a terminal that is closed.

``SIGTERM``, ``SIGUSR1`` and ``SIGHUP`` raise ``Stopped`` in the main thread, as Ctrl-C raises ``KeyboardInterrupt``.
The run saves what it had at the end of its last round and ends with the code 75, which says that the same command goes
on from there. A signal that is ignored, as ``nohup`` does with ``SIGHUP``, stays ignored.
"""

import multiprocessing
import os
import signal
import stat
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from types import FrameType

from datamodules.common.errors import Stopped

STOPPED = 75  # EX_TEMPFAIL of sysexits.h: try again
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)

_watched: tuple[signal.Signals, ...] = ()
_came: list[signal.Signals] = []


@contextmanager
def stoppable(*more: signal.Signals) -> Iterator[None]:
    """Let the first signal raise ``Stopped``, and ignore what follows, so that there is peace to save.

    Inside another such context it changes nothing, and neither in other threads than the main one, which alone may say
    what signals do.

    Args:
        more: signals to treat alike, beside ``SIGNALS``.
    """
    global _watched
    if _watched or threading.current_thread() is not threading.main_thread():
        yield
        return
    _watched = tuple(one for one in (*SIGNALS, *more) if signal.getsignal(one) is not signal.SIG_IGN)
    before = {one: signal.signal(one, _raise) for one in _watched}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
        _watched = ()
        _came.clear()


def _raise(number: int, frame: FrameType | None) -> None:
    for one in _watched:
        signal.signal(one, signal.SIG_IGN)
    _came.append(signal.Signals(number))
    if number == signal.SIGHUP:
        _leave_terminal()
    raise Stopped(number)


def _leave_terminal() -> None:
    """Write to nowhere what went to a terminal: it is gone, and writing to it fails."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        if stat.S_ISCHR(os.fstat(stream).st_mode):  # isatty says no, since the terminal is gone
            os.dup2(nowhere, stream)
    os.close(nowhere)


def check_stopped() -> None:
    """Raise ``Stopped`` once more where the first one was swallowed, as in a destructor, or is still to be raised."""
    if _came:
        raise Stopped(_came[0])


def children() -> set[BaseProcess]:
    """Processes that this one has started through ``multiprocessing`` and that go on."""
    return set(multiprocessing.active_children())


def stop(processes: Iterable[BaseProcess], number: int) -> None:
    """Pass a signal on to processes, and wait until they have ended.

    There is no limit to the time that they take to save: whoever sent the signal has one. A second Ctrl-C ends them at
    once.
    """
    asked = list(processes)
    try:
        for process in asked:
            if process.is_alive() and process.pid is not None:
                os.kill(process.pid, number)
        for process in asked:
            process.join()
    except BaseException:
        for process in asked:
            process.kill()
        raise
