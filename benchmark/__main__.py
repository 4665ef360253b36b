"""``python -m benchmark``, and the console script ``fssl-bench``."""

import os
import sys
from pathlib import Path

from benchmark import ROOT


def run() -> int:
    """Run the command that the process was started with; returns its exit code.

    The working directory is searched for modules of one's own, and last: nothing that lies in it hides a package. It
    stays where it is only in a checkout of this repository. Processes that a run starts take over the order.
    """
    here = os.getcwd()
    if Path(here).resolve() != ROOT:
        sys.path[:] = [path for path in sys.path if path not in ("", here)]
    if here not in sys.path:
        sys.path.append(here)

    from benchmark.cli import main

    return main()


if __name__ == "__main__":
    sys.exit(run())
