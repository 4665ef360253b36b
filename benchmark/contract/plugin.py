"""The pytest plugin: an option that names the methods."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """``pytest --pyargs benchmark.contract --fssl-method my_package.mine.Mine``."""
    parser.addoption(
        "--fssl-method",
        dest="fssl_method",
        action="append",
        metavar="NAME",
        help="method for the contract tests of fssl-bench, by name or dotted path (default: all that are known)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Name the check that is running."""
    if config.getoption("fssl_method"):
        config.option.verbose = max(config.option.verbose, 1)
