"""Start-up and shut-down time of commands: imports, the first round, the end."""

import os
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmark import ROOT
from benchmark.perf.measure import Section, interleaved

NOTE = (
    "Seconds from the start of a process to its end, one thread, with files cached. The round takes under 0.1 s; "
    "the rest are the imports, reading the digits with scikit-learn, and the end of the process. Weights & Biases "
    "adds the start and end of another package (`--wandb off` avoids them)."
)


def section(method: str) -> list[Section]:
    """Measure commands in separate processes, interleaved."""
    table = Section("Start", ["command", "seconds", "x import"], NOTE)
    taken = interleaved({name: partial(call, words) for name, words in commands(method).items()})
    imports = next(iter(taken.values()))
    return [table.add([[name, value, value / imports] for name, value in taken.items()])]


def commands(method: str) -> dict[str, Sequence[str]]:
    """Return the measured commands; the first one is the reference."""
    fit = ("-m", "benchmark", "fit", "--method", method, "--data", "digits", "--rounds", "1", "--devices", "1")
    return {
        "import lightning.pytorch": ("-c", "import lightning.pytorch"),
        f"one round of {method} on digits": (*fit, "--wandb", "off"),
        "the same, mirrored to an offline W&B": (*fit, "--wandb", "offline"),
    }


def call(words: Sequence[str]) -> None:
    """Run Python with these arguments in an empty folder, one thread; results are thrown away.

    Raises:
        CalledProcessError: it fails.
    """
    with TemporaryDirectory() as place:
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        own = ["--results_dir", str(Path(place) / "results")] if words[0] == "-m" else []
        subprocess.run(
            [sys.executable, *words, *own],
            cwd=place,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "WANDB_SILENT": "true"},
            check=True,
            capture_output=True,
        )
