"""What a process of a run sets up for itself: memory, queues of a GPU, and an end together with its parent."""

import ctypes
import multiprocessing
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import NoReturn

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4


def keep_memory() -> bool:
    """Tell glibc's malloc to serve everything from the heap and never to trim it.

    Large forward passes and full-batch steps become up to twice as fast, since page faults can cost more than the
    arithmetic. But the process does not return memory to the system until it ends. ``FSSL_KEEP_MEMORY=0`` in the
    environment switches this off.

    Returns:
        whether the settings were made (only on Linux with glibc).
    """
    if os.environ.get("FSSL_KEEP_MEMORY", "1") == "0" or not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except OSError:
        return False
    return bool(mallopt(M_MMAP_MAX, 0)) and bool(mallopt(M_TRIM_THRESHOLD, 2**31 - 1))


def enough_queues() -> None:
    """Ask CUDA, before it starts, for 32 work queues (its maximum) instead of 8, which more slots would have to share.

    ``CUDA_DEVICE_MAX_CONNECTIONS`` takes precedence if it is set in the environment.
    """
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")


@cache
def die_with_parent() -> None:
    """Watch the process that started this one from a thread, and exit as soon as it is gone.

    An orphan would keep its run locked, so that it could not be resumed. Further calls do nothing.
    """
    if multiprocessing.parent_process() is not None:
        threading.Thread(target=_wait, daemon=True).start()


@contextmanager
def os_exit_raises() -> Iterator[None]:
    """Let ``os._exit`` raise ``SystemExit`` in the main thread: it would end a run as if nothing had happened.

    Other threads, and processes that are forked meanwhile, still end at once.
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


def _wait() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
