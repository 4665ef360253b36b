"""``python -m benchmark``, and the console script ``fssl-bench``."""

import os
import sys
from pathlib import Path

from benchmark import ROOT


def run() -> int:
    """Run the command given on the command line; returns its exit code.

    The working directory is searched last for users' modules, so that nothing in it hides a package. Its place is only
    kept in a checkout of this repository. Processes started by a run inherit the order.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever has started this process
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    try:
        here = os.getcwd()
    except FileNotFoundError:
        print("error: the working folder has been removed; change to another one", file=sys.stderr)
        return 2
    if Path(here).resolve() != ROOT:
        sys.path[:] = [path for path in sys.path if path not in ("", here)]
    if here not in sys.path:
        sys.path.append(here)

    from benchmark.cli import main

    return main()


if __name__ == "__main__":
    sys.exit(run())
