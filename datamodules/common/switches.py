"""Arguments annotated with ``Literal``: their values, and refusal of others."""

from collections.abc import Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from datamodules.common.errors import ConfigError


@cache
def switches(cls: type) -> dict[str, tuple[Any, ...]]:
    """Return the ``Literal`` arguments of ``cls.__init__`` (including bases) with their values."""
    found: dict[str, tuple[Any, ...]] = {}
    for base in reversed(cls.__mro__):
        try:
            hints = get_type_hints(vars(base).get("__init__", object))
        except (NameError, TypeError):  # names that only a type checker imports
            continue
        hints.pop("return", None)
        for name, hint in hints.items():
            parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
            choices = [get_args(p) if get_origin(p) is Literal else (None,) if p is NoneType else () for p in parts]
            found[name] = tuple(value for values in choices for value in values) if all(choices) else ()
    return {name: values for name, values in found.items() if values}


def check_switches(cls: type, values: Mapping[str, Any]) -> None:
    """Refuse invalid values of ``Literal`` arguments, for callers without a type-checked configuration.

    Raises:
        ConfigError: names the argument, its value and the allowed values.
    """
    for name, known in switches(cls).items():
        if name in values and values[name] not in known:
            choices = ", ".join(map(str, known))
            raise ConfigError(f"{cls.__name__}: {name}={values[name]!r} is unknown; choose one of {choices}")
