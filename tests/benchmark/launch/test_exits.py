"""``os._exit`` raises in the main thread of a run, and nowhere else."""

import subprocess
import sys

EXITS = """
import os, threading
from benchmark.launch.exits import os_exit_raises

with os_exit_raises():
    if not (child := os.fork()):
        os._exit(5)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
    threading.Thread(target=os._exit, args=(7,)).start()
    threading.Event().wait(60)
"""


def test_other_threads_and_forked_processes_end_at_once():
    """Only the main thread of the run is kept from ending it."""
    assert subprocess.run([sys.executable, "-c", EXITS], timeout=60, check=False).returncode == 7
