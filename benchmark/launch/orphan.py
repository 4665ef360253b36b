"""Processes that end with their parent: an orphan would keep its run locked, so that it could not be resumed."""

import multiprocessing
import os
import threading
import time
from functools import cache

LOOK_S = 0.5


@cache
def die_with_parent() -> None:
    """Watch the process that spawned this one (or ``torchrun``) from a thread, and exit as soon as it is gone.

    Further calls do nothing.
    """
    if multiprocessing.parent_process() is not None:
        threading.Thread(target=_wait, daemon=True).start()
    elif "TORCHELASTIC_RUN_ID" in os.environ:
        threading.Thread(target=_look, args=(os.getppid(),), daemon=True).start()


def _wait() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _look(parent: int) -> None:
    """As ``_wait``, for a process not started by ``multiprocessing``: an orphan gets another parent."""
    while os.getppid() == parent:
        time.sleep(LOOK_S)
    os._exit(1)
