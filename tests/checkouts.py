"""What only a checkout can say: which files are committed, and which are ignored."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
in_a_checkout = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="asks git, and these files are no checkout")


def committed(*patterns: str) -> list[Path]:
    """Files in the index that match one of the patterns."""
    done = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / line for line in done.stdout.splitlines()]


def ignored(*files: str) -> list[str]:
    """Those of the files, which need not exist, that a commit would leave out."""
    done = subprocess.run(["git", "check-ignore", *files], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.split()
