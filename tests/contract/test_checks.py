"""What somebody who runs the contract is told."""

import subprocess
import sys
from types import SimpleNamespace

from benchmark.contract import plugin
from benchmark.contract.checks import CHECKS, announced


def test_it_says_what_it_will_take() -> None:
    assert announced(["mine"]) == f"contract of mine: {len(CHECKS)} checks each, about a minute on one core"
    assert "2 methods" in announced(["mine", "yours"]) and "2 minutes" in announced(["mine", "yours"])
    nobody, somebody = (SimpleNamespace(getoption=lambda name, given=given: given) for given in ([], ["mine"]))
    assert plugin.pytest_report_collectionfinish(nobody) == []
    assert plugin.pytest_report_collectionfinish(somebody) == [announced(["mine"])]


def test_every_check_is_named_while_it_goes_on() -> None:
    """In another process, as somebody with a package of their own runs it."""
    command = [
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--pyargs",
        "benchmark.contract",
        "--fssl-method",
        "fedavg",
    ]
    chosen = ["-k", "default_arguments_are_plain", "-p", "benchmark.contract.plugin"]
    done = subprocess.run([sys.executable, *command, *chosen], capture_output=True, text=True, timeout=100)
    assert f"contract of fedavg: {len(CHECKS)} checks" in done.stdout
    assert "fedavg-default_arguments_are_plain] PASSED" in done.stdout
