"""The options of this suite."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_a_named_method_meets_its_contract_and_no_other_test():
    """``pytest tests/contract --method NAME`` leaves out what does not depend on NAME."""
    files = ("tests/contract/test_contract.py", "tests/contract/test_attributes.py")
    command = [sys.executable, "-m", "pytest", *files, "--method", "fedavg", "--collect-only", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    tests = [line.split("Function ")[1] for line in done.stdout.splitlines() if "<Function " in line]
    assert tests
    assert all(name.startswith("test_contract[fedavg-") for name in tests), tests
