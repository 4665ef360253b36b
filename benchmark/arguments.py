"""Arguments of a class: which its constructor takes, of which types, and given values converted to these."""

import argparse
import inspect
import json
from collections.abc import Collection, Mapping
from copy import deepcopy
from functools import cache, lru_cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from benchmark.registry import KINDS, ClassSpec, find_class, one_line, unknown
from datamodules.common.errors import BenchError, ConfigError
from datamodules.common.plugins import place

ELSEWHERE = {"model": "--model", "data_dir": "--data_dir", "run_seed": "--seed"}
"""Arguments that the run supplies, and the option of ``fit`` that sets each of them."""


def build(spec: ClassSpec, slot: str, **supplied: Any) -> Any:
    """An instance of the spec's class; ``supplied`` are the arguments that the run itself hands over.

    Raises:
        ConfigError: an argument is missing, unknown or of the wrong type, or the constructor fails.
    """
    cls, args = resolved(spec, slot, supplied, plain=False)
    for name in sorted(without_default(cls) - set(args) - set(supplied)):
        network = slot == "method" and "model" not in inspect.signature(cls).parameters
        hint = "; if it is the network, call it `model`: a run hands it over under this name" if network else ""
        raise ConfigError(f"{slot} argument '{name}' of {cls.__name__} has no default: give --{slot}.{name}{hint}")
    try:
        return cls(**args, **supplied)
    except BenchError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {error} ({place(error)})"
        model = supplied.get("model")
        if model is not None and getattr(error, "obj", None) is model:
            name = type(model).__name__
            why += f"; the method asks its network for this, so derive {name} from methods.models.backbone.Backbone"
        raise ConfigError(f"the {KINDS[slot].what} {cls.__name__} cannot be made: {why}") from error


def resolved(
    spec: ClassSpec, slot: str, supplied: Collection[str] = (), *, plain: bool = True
) -> tuple[type, dict[str, Any]]:
    """The class of a spec, and all its arguments but those that a run hands over.

    Args:
        spec: the class, and the arguments that are given.
        slot: ``method`` or ``data``.
        supplied: further arguments that are handed over.
        plain: as in ``typed_args``.

    Raises:
        ConfigError: unknown class or argument (with the closest known one), or a value of the wrong type.
    """
    cls = find_class(spec.class_path, KINDS[slot])
    given = {name: value for name, value in spec.init_args.items() if not _is_retired(cls, name, value)}
    return cls, typed_args(cls, given, slot, handed_over(cls, slot, given) | set(supplied), plain=plain)


def _is_retired(cls: type, name: str, value: object) -> bool:
    """Whether a class no longer has an argument, and always does what this value said (``FedMethod.retired``)."""
    return name not in parameters(cls) and any(
        name in (kept := vars(base).get("retired", {})) and kept[name] == value for base in cls.__mro__
    )


def parameters(cls: type) -> dict[str, bool]:
    """Arguments of ``__init__`` (bases included), and whether each has to be given."""
    return dict(_parameters(cls))


@cache
def _parameters(cls: type) -> Mapping[str, bool]:
    known: dict[str, bool] = {}
    for base in cls.__mro__:
        init = base.__dict__.get("__init__")
        if init is None:
            continue
        own = list(inspect.signature(init).parameters.values())[1:]
        for p in own:
            if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY):
                known.setdefault(p.name, p.default is p.empty)
        if all(p.kind is not p.VAR_KEYWORD for p in own):
            break
    return known


def without_default(cls: type) -> set[str]:
    """Arguments of ``__init__`` that have no default: the run supplies them (e.g. the network)."""
    return {name for name, required in parameters(cls).items() if required}


def handed_over(cls: type, slot: str, given: Collection[str] = ()) -> set[str]:
    """Arguments of ``cls`` that are the run's to supply: the kind's own, and those without default or given value."""
    return set(KINDS[slot].supplied) | (without_default(cls) - set(given))


def typed_args(
    cls: type, values: Mapping[str, Any], where: str, skip: Collection[str] = (), *, plain: bool = True
) -> dict[str, Any]:
    """All arguments of ``cls.__init__`` (bases included), ``values`` checked and converted to their types.

    Args:
        cls: class or dataclass.
        values: given arguments.
        where: prefix of error messages.
        skip: arguments that are not configurable.
        plain: return plain data (tuples as lists, paths as strings) that YAML and JSON can hold.

    Raises:
        ConfigError: unknown argument (with the closest known one) or a value of the wrong type.
    """
    key = json.dumps(dict(values), default=str, skipkeys=True)
    if json.loads(key) == values:
        args = _cached(cls, key, where, frozenset(skip))
    else:
        args = _parsed(cls, values, where, frozenset(skip))
    return dict(json.loads(json.dumps(args, default=str))) if plain else deepcopy(args)


@lru_cache(maxsize=4096)
def _cached(cls: type, values: str, where: str, skip: frozenset[str]) -> dict[str, Any]:
    """``_parsed``, of JSON: a suite asks for the same arguments in hundreds of rows."""
    given = json.loads(values)
    args = _one_by_one(cls, given, skip)
    return _parsed(cls, given, where, skip) if args is None else args


def _one_by_one(cls: type, values: Mapping[str, Any], skip: frozenset[str]) -> dict[str, Any] | None:
    """What ``_parsed`` returns, put together from arguments that are converted once each: rows of a suite share most.

    ``None`` if a value does not fit, or if an argument may hold an object, whose parts have defaults of their own.
    """
    import jsonargparse

    types, required = types_of(cls, skip), without_default(cls) - skip
    plain = all(_is_plain(hint) and "." not in name for name, hint in types.items())  # a dot: of an object
    if not (plain and required <= values.keys() <= types.keys()):
        return None
    try:
        given = {name: _converted(cls, name, json.dumps(value), skip) for name, value in values.items()}
        args = _unset(cls, skip | required) | given
    except jsonargparse.ArgumentError:
        return None
    if any(args[name] is None and not _may_be_none(types[name]) for name in values):
        return None
    return {name: args[name] for name in types}


@cache
def _unset(cls: type, skip: frozenset[str]) -> dict[str, Any]:
    """All arguments of a class, without those to ``skip``, if none is given."""
    return dict(vars(parser_of(cls, skip).parse_object({})))


@lru_cache(maxsize=4096)
def _converted(cls: type, name: str, value: str, skip: frozenset[str]) -> Any:
    """The value, in JSON, of one argument, converted to its type."""
    others = without_default(cls) - {name}
    return parser_of(cls, skip | others).parse_object({name: json.loads(value)}, defaults=False)[name]


def _parsed(cls: type, values: Mapping[str, Any], where: str, skip: frozenset[str]) -> dict[str, Any]:
    import jsonargparse

    parser, types = parser_of(cls, skip), types_of(cls, skip)
    for name in values:
        if name in skip and name in ELSEWHERE:
            raise ConfigError(f"unknown {where} argument '{name}': give {ELSEWHERE[name]} instead")
        if name not in types:
            raise unknown(f"{where} argument", name, sorted(types), f" ({cls.__name__})")
    try:
        args = dict(vars(parser.parse_object(dict(values))))
    except jsonargparse.ArgumentError as error:
        wrong = next((name for name in values if not accepts(cls, name, values[name], skip)), None)
        message = one_line(error) if wrong is None else _mismatch(where, wrong, values[wrong], types[wrong])
        raise ConfigError(f"{where} ({cls.__name__}): {message}") from None
    for name in values:
        if args[name] is None and not _may_be_none(types[name]):  # jsonargparse takes null for any type
            raise ConfigError(f"{where} ({cls.__name__}): {_mismatch(where, name, None, types[name])}")
    return args


def accepts(cls: type, name: str, value: object, skip: Collection[str] = ()) -> bool:
    """Whether a class has an argument of this name, other than those to ``skip``, whose type takes the value."""
    import jsonargparse

    others = without_default(cls) - {name}
    try:
        parser_of(cls, frozenset(skip) | others).parse_object({name: value})
    except jsonargparse.ArgumentError:
        return False
    return True


def _mismatch(where: str, name: str, value: object, hint: Any) -> str:
    """What is wrong with a value, by its option on the command line."""
    option = f"{where}.{name}" if where in (*KINDS, "roster") else name
    return f"--{option} {'null' if value is None else value}: expected {type_in_words(hint)}"


@cache
def parser_of(cls: type, skip: frozenset[str]) -> Any:
    """jsonargparse's parser for the arguments of a class, without those to ``skip``."""
    import jsonargparse

    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(cls, skip=set(skip), fail_untyped=False)
    return parser


@cache
def types_of(cls: type, skip: frozenset[str]) -> dict[str, Any]:
    """The type of each argument of a class, without those to ``skip``."""
    return {option.dest: type_of(option) for option in options_of(parser_of(cls, skip)) if option.dest != "help"}


def options_of(parser: Any) -> list[argparse.Action]:
    """The options of a parser, of which argparse has no public list."""
    return list(parser._actions)


def type_of(option: argparse.Action) -> Any:
    """The type of an option of jsonargparse, as it is annotated."""
    return getattr(option, "_typehint", None) or option.type or Any


def type_in_words(hint: Any) -> str:
    """A type as the command line has it: ``float``, ``int or null``, ``{a,b}``."""
    if hint is Any:
        return "any"
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(map(type_in_words, get_args(hint)))
    if get_origin(hint) is Literal:
        choices = ",".join(map(str, get_args(hint)))
        return f"{{{choices}}}" if len(get_args(hint)) > 1 else choices
    if get_origin(hint) is None and isinstance(hint, type):
        return {NoneType: "null", bool: "{true,false}"}.get(hint, hint.__name__)
    return str(hint).removeprefix("typing.")


def _is_plain(hint: Any) -> bool:
    """Whether the values of a type are plain data and paths."""
    if get_origin(hint) is Literal:
        return True
    if get_origin(hint) is None:
        return hint in (Any, None, ..., NoneType, bool, int, float, str, list, tuple, dict, Path)
    return get_origin(hint) in (Union, UnionType, list, tuple, dict) and all(map(_is_plain, get_args(hint)))


def _may_be_none(hint: Any) -> bool:
    """Whether a type has ``None`` among its values."""
    return hint in (Any, NoneType) or NoneType in get_args(hint) or None in get_args(hint)
