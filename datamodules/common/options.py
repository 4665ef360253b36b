"""Checks of options: by the annotations of a constructor, and a data module's in combination."""

from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from pydantic import Field, TypeAdapter, ValidationError

from datamodules.common.errors import ConfigError

Scenario = Literal["partial_clients", "server", "all_clients"]

Positive = Annotated[int, Field(ge=1)]
NotNegative = Annotated[int, Field(ge=0)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
"""What NumPy's legacy generator takes."""
Probability = Annotated[float, Field(ge=0, le=1)]
Share = Annotated[float, Field(gt=0, lt=1)]
Means = list[Annotated[float, Field(allow_inf_nan=False)]]
Deviations = list[Annotated[float, Field(gt=0, allow_inf_nan=False)]]

LABEL_OPTIONS: Mapping[str, tuple[Scenario, ...]] = {
    "num_labels": ("server", "all_clients"),
    "label_fraction": ("all_clients",),
    "labels_per_class": ("all_clients",),
    "labelled_partition": ("all_clients",),
    "labelled_histogram": ("partial_clients",),
    "labelled_pick": ("partial_clients",),
}
"""Options for labels, and the scenarios that use them."""

ONE_OF_TWO = (
    ("partition_file", "validation", "the file says who has which image"),
    ("partition_file", "balanced_holdout", "the file says who has which image"),
    ("labelled_holdout", "balanced_holdout", "both replace the test set"),
)
"""Options that exclude each other, and why."""

HOLDOUTS = ("balanced_holdout", "labelled_holdout")
"""Options that replace the test set."""


def label_options(options: Mapping[str, Any]) -> list[str]:
    """Those of ``LABEL_OPTIONS`` that are given; ``labelled_pick`` if it names clients and is no rule."""
    given = [name for name in LABEL_OPTIONS if options[name] is not None]
    return [name for name in given if name != "labelled_pick" or not isinstance(options[name], str)]


def check_together(options: Mapping[str, Any]) -> None:
    """Refuse options of a data module that have no effect or conflict with others.

    Raises:
        ConfigError: names them and what to choose.
    """
    scenario = options["scenario"]
    asked = label_options(options)
    for name in asked:
        if scenario not in LABEL_OPTIONS[name]:
            raise ConfigError(
                f"data.{name} has no effect with data.scenario={scenario}: choose {' or '.join(LABEL_OPTIONS[name])}, "
                "or leave it out"
            )
    if options["unlabelled_only"] and asked:
        raise ConfigError(f"data.unlabelled_only leaves every label known: leave out {', '.join(asked)}")
    if options["hidden_labels"] == "pooled" and options["union_mode"] != "none":
        raise ConfigError(
            f"with data.hidden_labels=pooled all images of a client count as labelled, and with "
            f"data.union_mode={options['union_mode']} some of them twice: choose data.union_mode=none"
        )
    for first, second, why in ONE_OF_TWO:
        if options[first] and options[second]:
            raise ConfigError(
                f"data.{first}={options[first]} and data.{second}={options[second]}: {why}; give only one of them"
            )
    for name in ("mean", "std", "test_mean", "test_std"):
        values, channels = options[name], options["channels"]
        if values is not None and len(values) not in (1, channels):
            raise ConfigError(f"data.{name}={values}: give one number, or one per channel (data.channels={channels})")


def check_arguments(cls: type, values: Mapping[str, Any]) -> None:
    """Refuse values that a ``Literal`` or a range in the annotations of ``cls.__init__`` (or a base's) does not allow.

    Types are checked where a configuration is read.

    Raises:
        ConfigError: names the argument, its value and the allowed values.
    """
    for name, adapter in _adapters(cls).items():
        try:
            if name in values:
                adapter.validate_python(values[name])
        except ValidationError as error:
            what = error.errors()[0]["msg"].replace("Input should", "it should")
            raise ConfigError(f"{cls.__name__}: {name}={values[name]!r}: {what}") from None


@cache
def _adapters(cls: type) -> dict[str, TypeAdapter[Any]]:
    hints: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        with suppress(NameError, TypeError):  # names that only a type checker imports
            hints |= get_type_hints(vars(base).get("__init__", object), include_extras=True)
    return {name: TypeAdapter(hint) for name, hint in hints.items() if _limits(hint)}


def _limits(hint: Any) -> bool:
    return get_origin(hint) in (Literal, Annotated) or any(map(_limits, get_args(hint)))
