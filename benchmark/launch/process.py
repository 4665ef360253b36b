"""What a process of a run sets up for itself: memory, queues of a GPU, and an end together with its parent."""

import ctypes
import multiprocessing
import os
import sys
import threading
from functools import cache

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


def _wait() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
