"""All checks of the contract, and how a test suite runs them.

In the tests of a package that has a method::

    from benchmark.contract.checks import parametrize_with_checks


    @parametrize_with_checks("my_package.mine.Mine")
    def test_contract(method, check):
        check(method)

From a shell: ``pytest --pyargs benchmark.contract --fssl-method my_package.mine.Mine``.

A check is a function ``check_...(method)`` in one of ``MODULES``; ``method`` is a name, a dotted path or a class. It
passes, or raises an error that says what is wrong. A new one needs no registration.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from benchmark.contract import hidden, isolation, runs, watching
from benchmark.contract.federations import Method

if TYPE_CHECKING:
    import pytest

Check = Callable[[Method], None]

MODULES = (runs, isolation, hidden, watching)
PREFIX = "check_"
CHECKS: tuple[Check, ...] = tuple(
    check for module in MODULES for name, check in vars(module).items() if name.startswith(PREFIX)
)


def title(value: Method | Check) -> str:
    """How a test names a method or a check."""
    return value if isinstance(value, str) else value.__name__.removeprefix(PREFIX)


def parametrize_with_checks(*methods: Method) -> "pytest.MarkDecorator":
    """A decorator that runs a test with the arguments ``method`` and ``check`` once per method and check."""
    import pytest

    pairs = [(method, check) for method in methods for check in CHECKS]
    return pytest.mark.parametrize(("method", "check"), pairs, ids=[f"{title(m)}-{title(c)}" for m, c in pairs])
