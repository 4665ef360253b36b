"""``plot``: curves of runs."""

import os
import subprocess
import sys

from benchmark import ROOT
from toy_suite import table


def test_a_backend_that_matplotlib_does_not_know_stops_no_plot(here, fitted):
    table("--seeds", "1")
    runs = [str(path) for path in here.glob("results/runs/fedavg-*")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "odd"}
    command = [sys.executable, "-m", "benchmark", "plot", *runs]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (here / "curves.png").exists()
