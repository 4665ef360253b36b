"""Checks of options: a data module's, one by one and in combination, and arguments annotated with ``Literal``."""

from collections.abc import Mapping
from functools import cache
from math import isfinite
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from datamodules.common.errors import ConfigError

Scenario = Literal["partial_clients", "server", "all_clients"]

LABEL_OPTIONS: Mapping[str, tuple[Scenario, ...]] = {
    "num_labels": ("server", "all_clients"),
    "label_fraction": ("all_clients",),
    "labels_per_class": ("all_clients",),
    "labelled_partition": ("all_clients",),
    "labelled_min_per_class": ("partial_clients",),
    "labelled_histogram": ("partial_clients",),
}
"""Options for the number and distribution of labels, and the scenarios that use them."""

LEAST: Mapping[str, int] = {
    **dict.fromkeys(("min_size", "border", "validation", "balanced_holdout", "labels_per_class"), 0),
    **dict.fromkeys(("iid_permutations", "split_classes", "picked", "labelled_from", "side", "zoom"), 1),
    **dict.fromkeys(("num_clients", "labelled_min_per_class"), 1),
}
"""The smallest allowed value of integer options."""


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse values out of range and contradictory options.

    Args:
        options: arguments of ``FSSLDataModule`` by name, with the seed that ``partition_seed=None`` stands for.

    Raises:
        ConfigError: names the first such option, its value, and what to choose.
    """
    for name in ("partition_seed", "split_seed"):
        if options[name] is not None and not 0 <= options[name] < 2**32:
            raise ConfigError(f"{name} is {options[name]}; NumPy takes 0 to 2^32 - 1")
    for name, least in LEAST.items():
        if options[name] is not None and not options[name] >= least:
            raise ConfigError(f"data.{name} is {options[name]}; it must be at least {least}")
    fraction = options["label_fraction"]
    for name, fits, what in (
        ("labelled_holdout", 0 <= options["labelled_holdout"] < 1, "a share, 0 to below 1"),
        ("label_fraction", fraction is None or 0 < fraction <= 1, "a share, above 0 to 1"),
        ("flip", 0 <= options["flip"] <= 1, "a probability, 0 to 1"),
        ("beta", 0 < options["beta"] < 1e300, "a concentration, above 0 and finite"),
    ):
        if not fits:
            raise ConfigError(f"data.{name} is {options[name]}; it is {what}")
    for name in ("mean", "std", "test_mean", "test_std"):
        if options[name] is not None:
            _check_constants(name, options[name], options["channels"])
    _check_together(options)


def _check_constants(name: str, values: list[float], channels: int) -> None:
    """Refuse normalisation constants that do not match the channels or are invalid."""
    if len(values) not in (1, channels):
        raise ConfigError(f"data.{name} is {values}; give one number, or one for each of {channels} channels")
    if not all(isfinite(value) and (name.endswith("mean") or value > 0) for value in values):
        raise ConfigError(f"data.{name} is {values}; give finite numbers{' above 0' if name.endswith('std') else ''}")


def _check_together(options: Mapping[str, Any]) -> None:
    """Refuse options that have no effect or conflict with others."""
    scenario = options["scenario"]
    for name, scenarios in LABEL_OPTIONS.items():
        if options[name] is not None and scenario not in scenarios:
            raise ConfigError(
                f"data.{name} has no effect with data.scenario={scenario}: choose {' or '.join(scenarios)}, or "
                "leave it out"
            )
    asked = [name for name in LABEL_OPTIONS if options[name] is not None]
    if options["unlabelled_only"] and asked:
        raise ConfigError(f"data.unlabelled_only leaves every label known: leave out {', '.join(asked)}")
    if options["labelled_repeats"] != "none" and options["labels_per_class"] is None:
        raise ConfigError(
            f"data.labelled_repeats={options['labelled_repeats']} needs data.labels_per_class: give that too, "
            "or leave it out"
        )
    if options["hidden_labels"] == "pooled" and options["union_mode"] != "none":
        raise ConfigError(
            f"with data.hidden_labels=pooled all images of a client count as labelled, and with "
            f"data.union_mode={options['union_mode']} some of them twice: choose data.union_mode=none"
        )
    for name in ("validation", "balanced_holdout"):
        if options["partition_file"] and options[name]:
            raise ConfigError(
                f"data.{name}={options[name]} holds images back from a draw, and data.partition_file="
                f"{options['partition_file']} says who has which: leave one out"
            )
    if options["labelled_holdout"] and options["balanced_holdout"]:
        raise ConfigError(
            f"data.labelled_holdout={options['labelled_holdout']} and "
            f"data.balanced_holdout={options['balanced_holdout']} both replace the test set: give only one"
        )


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
