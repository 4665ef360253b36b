"""A machine with a GPU that is lent for an hour has torch and few other packages."""

import re
import subprocess
import sys
from pathlib import Path

import torch

from benchmark import ROOT

ABSENT = (
    "jinja2", "matplotlib", "mpl_toolkits", "pandas", "pip", "rich", "scikit_learn", "scipy", "sklearn",
    "statsmodels", "tabulate", "timm", "torchvision", "transformers", "wandb",
)  # fmt: skip


def test_a_gpu_is_measured_without_them(tmp_path: Path) -> None:
    """The plan for a GPU runs at trial size where these are not installed."""
    for package in Path(torch.__file__).parents[1].iterdir():
        if re.split("[-.]", package.name.lower())[0] not in ABSENT:
            (tmp_path / package.name).symlink_to(package)
    environment = {"PYTHONPATH": f"{ROOT}:{tmp_path}", "PATH": "", "OMP_NUM_THREADS": "1", "HOME": str(tmp_path)}
    command = [sys.executable, "-S", "-m", "benchmark.perf", "gpu:fedavg", "--trial", "--parts", "engines"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "small_cnn" in done.stdout and "No module" not in done.stdout
    assert "failed" not in done.stdout, done.stdout


def test_make_installs_nothing_on_a_machine_with_a_gpu() -> None:
    """It takes the interpreter as it is."""
    told = subprocess.run(["make", "-n", "perf-gpu"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "benchmark.perf gpu --write" in told and "pip" not in told and "venv " not in told
