"""All checks of the contract, and how a test suite runs them.

In the tests of a package that has a method::

    from benchmark.contract.checks import parametrize_with_checks


    @parametrize_with_checks("my_package.mine.Mine")
    def test_contract(method, check):
        check(method)

A check is a function ``check_...(subject)`` in one of ``MODULES``. It passes, or raises an error that says what is
wrong. A new one needs no registration.
"""

from collections.abc import Callable
from functools import cache

import pytest

from benchmark.contract import isolation, runs
from benchmark.contract.federations import Method, Subject

MODULES = (isolation, runs)
PREFIX = "check_"
Check = Callable[[Method], None]
subject_of = cache(Subject)


def of_method(check: Callable[[Subject], None]) -> Check:
    """A check by name, dotted path or class of a method; its error begins with the name of the class."""

    def checked(method: Method) -> None:
        subject = subject_of(method)
        try:
            check(subject)
        except AssertionError as error:
            raise AssertionError(f"{subject.cls.__name__}: {error}") from error

    return checked


CHECKS: dict[str, Check] = {
    name.removeprefix(PREFIX): of_method(check)
    for module in MODULES
    for name, check in vars(module).items()
    if name.startswith(PREFIX)
}


def parametrize_with_checks(*methods: Method) -> pytest.MarkDecorator:
    """A decorator that runs a test with the arguments ``method`` and ``check`` once per method and check."""
    pairs = [
        pytest.param(method, check, id=f"{method if isinstance(method, str) else method.__name__}-{name}")
        for method in methods
        for name, check in CHECKS.items()
    ]
    return pytest.mark.parametrize(("method", "check"), pairs)
