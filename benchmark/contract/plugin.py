"""The pytest plugin: an option that names the methods, and failures of checks that show their values."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def pytest_addoption(parser: "pytest.Parser") -> None:
    """``pytest --pyargs benchmark.contract --fssl-method my_package.mine.Mine``."""
    parser.addoption(
        "--fssl-method",
        dest="fssl_method",
        action="append",
        default=[],
        metavar="NAME",
        help="method for the contract tests of fssl-bench, by name or dotted path (default: all that are known)",
    )


def pytest_configure(config: "pytest.Config") -> None:
    """Let a failed assertion in a check show its values, as in a test; name the check that is running."""
    import pytest

    if config.getoption("fssl_method"):
        config.option.verbose = max(config.option.verbose, 1)

    pytest.register_assert_rewrite(
        *(f"benchmark.contract.{name}" for name in ("runs", "irrelevant", "steps", "isolation"))
    )


def pytest_report_collectionfinish(config: "pytest.Config") -> list[str]:
    """Say how long the contract of the named methods will take."""
    methods = config.getoption("fssl_method")
    if not methods:
        return []
    from benchmark.contract.checks import announced  # imports torch

    return [announced(methods)]
