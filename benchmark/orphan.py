"""Processes that end with their parent: nobody waits for an orphan, and its run must be free to resume."""

import multiprocessing
import os
import threading


def die_with_parent() -> None:
    """Watch the process that spawned this one, if any, from a thread, and end at once when it is gone."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()
