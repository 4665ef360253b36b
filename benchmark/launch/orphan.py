"""Processes that end with their parent: nobody waits for an orphan, and its run must be free to resume."""

import multiprocessing
import os
import threading


def die_with_parent() -> None:
    """Watch the process that spawned this one, if any, from a thread, and end at once when it is gone."""
    if multiprocessing.parent_process() is not None:
        threading.Thread(target=_wait, daemon=True).start()


def _wait() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
