"""Arguments of a class: which its constructor takes, what they mean, and given values converted to their types."""

import inspect
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import docstring_parser
from pydantic import ConfigDict, PydanticUserError, TypeAdapter

from benchmark.registry import KINDS, ClassSpec, find_class, one_line, unknown
from datamodules.common.errors import BenchError, ConfigError
from datamodules.common.plugins import place
from datamodules.common.yaml import read_value

ELSEWHERE = {"model": "--model", "data_dir": "--data_dir", "run_seed": "--seed"}
"""Arguments that the run supplies, and the option of ``fit`` that sets each of them."""


@dataclass(frozen=True)
class Argument:
    """An argument of a constructor: its type as annotated, and its default, if any."""

    type: Any
    default: Any = inspect.Parameter.empty

    @property
    def is_required(self) -> bool:
        """Whether it has no default."""
        return self.default is inspect.Parameter.empty


def parameters(cls: type) -> Mapping[str, Argument]:
    """Arguments of ``cls.__init__`` by name; where it hands others on (``**base``), those of its bases too."""
    return _parameters(cls)


@cache
def _parameters(cls: type) -> Mapping[str, Argument]:
    known: dict[str, Argument] = {}
    for base in cls.__mro__:
        init = vars(base).get("__init__")
        if init is None:
            continue
        own, hints = list(inspect.signature(init).parameters.values())[1:], _hints(init)
        for p in own:
            if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY):
                known.setdefault(p.name, Argument(hints.get(p.name, Any), p.default))
        if all(p.kind is not p.VAR_KEYWORD for p in own):
            break
    return known


def _hints(function: Any) -> dict[str, Any]:
    try:
        return get_type_hints(function)
    except NameError:  # imported for type checkers alone
        return {}


def build(spec: ClassSpec, slot: str, **supplied: Any) -> Any:
    """An instance of the spec's class; ``supplied`` are the arguments that the run itself hands over.

    Raises:
        ConfigError: an argument is missing, unknown or of the wrong type, or the constructor fails.
    """
    cls = find_class(spec.class_path, KINDS[slot])
    given = _without_retired(cls, spec.init_args)
    args = converted(cls, given, slot, handed_over(cls, slot, given) | set(supplied))
    for name in sorted(_required(cls) - set(args) - set(supplied)):
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


def resolved(spec: ClassSpec, slot: str) -> tuple[type, dict[str, Any]]:
    """The class of a spec, and all its arguments but those that a run hands over, as plain data.

    Raises:
        ConfigError: unknown class or argument (with the closest known one), or a value of the wrong type.
    """
    cls = find_class(spec.class_path, KINDS[slot])
    given = _without_retired(cls, spec.init_args)
    return cls, typed_args(cls, given, slot, handed_over(cls, slot, given))


def _without_retired(cls: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments without those that a class no longer has, if it always does what they say (``FedMethod.retired``)."""
    kept = [vars(base).get("retired", {}) for base in cls.__mro__]
    retired = {name for own in kept for name in own if name in given and own[name] == given[name]}
    return {name: value for name, value in given.items() if name in parameters(cls) or name not in retired}


def _required(cls: type) -> set[str]:
    return {name for name, argument in parameters(cls).items() if argument.is_required}


def handed_over(cls: type, slot: str, given: Collection[str] = ()) -> set[str]:
    """Arguments of ``cls`` that are the run's to supply: the kind's own, and those without default or given value."""
    return set(KINDS[slot].supplied) | (_required(cls) - set(given))


def typed_args(cls: type, values: Mapping[str, Any], where: str, skip: Collection[str] = ()) -> dict[str, Any]:
    """All arguments of a class that have a value, as plain data (tuples as lists, paths as strings).

    The arguments and errors are those of ``converted``.
    """
    args = {name: a.default for name, a in parameters(cls).items() if name not in skip and not a.is_required}
    given = converted(cls, values, where, skip)
    return dict(json.loads(json.dumps(args | given, default=str)))


def converted(cls: type, values: Mapping[str, Any], where: str, skip: Collection[str] = ()) -> dict[str, Any]:
    """Given arguments of a class or dataclass, converted to the types of its constructor.

    Args:
        cls: class or dataclass.
        values: given arguments. Texts are read as in a YAML file where the type is no text.
        where: prefix of error messages.
        skip: arguments that are not configurable.

    Raises:
        ConfigError: unknown argument (with the closest known one) or a value of the wrong type.
    """
    types = {name: argument.type for name, argument in parameters(cls).items() if name not in skip}
    for name in values:
        if name in skip and name in ELSEWHERE:
            raise ConfigError(f"unknown {where} argument '{name}': give {ELSEWHERE[name]} instead")
        if name not in types:
            raise unknown(f"{where} argument", name, sorted(types), f" ({cls.__name__})")
    args = {}
    for name, value in values.items():
        try:
            args[name] = _converted(types[name], value)
        except (ValueError, TypeError):
            option = f"{where}.{name}" if where in (*KINDS, "roster") else name
            given = "null" if value is None else value
            raise ConfigError(
                f"{where} ({cls.__name__}): --{option} {given}: expected {type_in_words(types[name])}"
            ) from None
    return args


def accepts(cls: type, name: str, value: object, skip: Collection[str] = ()) -> bool:
    """Whether a class has an argument of this name, other than those to ``skip``, whose type takes the value."""
    try:
        converted(cls, {name: value}, "", skip)
    except ConfigError:
        return False
    return True


def _converted(hint: Any, value: Any) -> Any:
    """A value in the type ``hint``; a text may also stand for what YAML reads in it.

    Raises:
        ValueError, TypeError: the type does not take it.
    """
    adapter = _adapter(hint)
    if isinstance(value, str):
        if hint is not Any and value != "null":
            try:
                return adapter.validate_json(json.dumps(value))
            except ValueError:
                pass
        value = read_value(value)
    return adapter.validate_json(json.dumps(value))


@cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(hint, config=ConfigDict(strict=True, allow_inf_nan=False))
    except PydanticUserError:  # a class of somebody's own
        return TypeAdapter(Any)


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


def described(cls: type, slot: str) -> dict[str, str]:
    """What each argument that a configuration may give to a class means; empty where nothing is said.

    It is its line under ``Args:``, or else its rows in a table of hyperparameters, of ``cls`` or a base.
    """
    texts = _table_rows(cls)
    for base in reversed(cls.__mro__):
        texts |= {one.arg_name: one.description or "" for one in docstring_parser.parse(base.__doc__ or "").params}
    return {name: one_line(texts.get(name, "")) for name in parameters(cls) if name not in KINDS[slot].supplied}


def _table_rows(cls: type) -> dict[str, str]:
    """Rows of the hyperparameter tables in the docstrings of a class and its bases, by the arguments that they name."""
    found: dict[str, str] = {}
    for base in cls.__mro__:
        lines = [line.strip(" |").split(" | ") for line in (base.__doc__ or "").splitlines() if line.strip()[:1] == "|"]
        own: dict[str, list[str]] = {}
        if lines and lines[0][0] == "hyperparameter":
            for first, *cells in lines[1:]:
                told = "; ".join(f"{of} {cell.strip()}" for of, cell in zip(lines[0][1:], cells, strict=False))
                for name in re.findall(r"``(\w+)``", first):
                    own.setdefault(name, []).append(told if first == f"``{name}``" else f"{first}: {told}")
        found = {name: ". ".join(rows) for name, rows in own.items()} | found
    return found
