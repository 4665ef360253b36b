"""The pytest plugin: an option that names the methods, and errors of checks that show their values."""

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


def pytest_configure() -> None:
    """Let a failed assertion of a check show its values, as one in a test does."""
    import pytest

    pytest.register_assert_rewrite(
        *(f"benchmark.contract.{name}" for name in ("runs", "steps", "isolation", "devices"))
    )
