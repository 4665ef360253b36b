"""A method or a data set that calls ``os._exit`` must not end its run as if nothing had happened."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn


@contextmanager
def os_exit_raises() -> Iterator[None]:
    """Let ``os._exit`` raise ``SystemExit`` in the main thread, as ``sys.exit`` does.

    Otherwise it would end a run in one process at once, perhaps with code 0, and the run's record would still say that
    it is running. Other threads, and forked processes, still end at once.
    """
    process, at_once = os.getpid(), os._exit

    def leave(status: int) -> NoReturn:
        if os.getpid() == process and threading.current_thread() is threading.main_thread():
            sys.exit(status)
        at_once(status)

    os._exit = leave
    try:
        yield
    finally:
        os._exit = at_once
