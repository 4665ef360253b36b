"""Small background tasks beside the main thread."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def repeatedly(work: Callable[[], None], every_s: float) -> Iterator[None]:
    """Call ``work`` from a thread every ``every_s`` seconds while the context is open."""
    done = threading.Event()

    def loop() -> None:
        while not done.wait(every_s):
            work()

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
