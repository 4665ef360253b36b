"""What somebody who runs the contract is told."""

import logging
import subprocess
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmark.contract import plugin, runs, steps
from benchmark.contract.checks import CHECKS, Check, announced, title
from benchmark.contract.federations import plain_fabric
from benchmark.contract.test_contract import pytest_generate_tests as generate


def test_it_says_what_it_will_take() -> None:
    assert announced(["mine"]) == f"contract of mine: {len(CHECKS)} checks each, about a minute on one core"
    assert "4 methods" in announced(["mine"] * 4) and "2 minutes" in announced(["mine"] * 4)
    nobody, somebody = (SimpleNamespace(getoption=lambda name, given=given: given) for given in ([], ["mine"]))
    assert plugin.pytest_report_collectionfinish(nobody) == []
    assert plugin.pytest_report_collectionfinish(somebody) == [announced(["mine"])]


@pytest.mark.parametrize(
    ("named", "told"), [("fedvag", "unknown method 'fedvag'; did you mean 'fedavg'"), ("no_package.Mine", "no_package")]
)
def test_a_misspelt_method_is_one_error(named: str, told: str) -> None:
    config = SimpleNamespace(getoption=lambda name: [named])
    with pytest.raises(pytest.Collector.CollectError, match=f"--fssl-method: .*{told}"):
        generate(cast(Any, SimpleNamespace(fixturenames=["method", "check"], config=config)))


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


@pytest.mark.parametrize(
    "check", [steps.check_a_visit_is_a_fit, runs.check_bf16_autocast_is_close_to_double], ids=title
)
def test_what_lightning_tells_does_not_reach_who_runs_the_checks(check: Check) -> None:
    """Tips of its ``Trainer``, and which precision it uses."""
    heard: list[str] = []

    class Hears(logging.Handler):
        """Keeps what it is given."""

        def emit(self, record: logging.LogRecord) -> None:
            """Keep it."""
            heard.append(record.getMessage())

    loggers, hears = [logging.getLogger(f"lightning.{part}") for part in ("pytorch", "fabric")], Hears()
    levels = [logger.level for logger in loggers]
    plain_fabric.cache_clear()
    for logger in loggers:
        logger.addHandler(hears)
    try:
        check("fedavg")
    finally:
        for logger in loggers:
            logger.removeHandler(hears)
    assert heard == []
    assert levels == [logger.level for logger in loggers]
