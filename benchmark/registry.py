"""Methods and data sets by name: the class that a name or a dotted path means, and the arguments that it takes."""

import importlib
import inspect
import json
import pkgutil
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, PydanticUserError, TypeAdapter

from datamodules.common.errors import BenchError, ConfigError, unknown
from datamodules.common.plugins import place, plugin
from datamodules.common.yaml import read_value

ELSEWHERE = {"model": "--model", "data_dir": "--data_dir", "run_seed": "--seed"}
"""Arguments that the run supplies, and the option of ``fit`` that sets each of them."""


@dataclass(frozen=True)
class Kind:
    """A family of classes that a configuration names: where they live, and what the run passes to them.

    Args:
        what: name of the family in messages.
        package: this project's package of them, with one module per class.
        base: dotted path of the base class.
        supplied: arguments that the run passes to the constructor.
    """

    what: str
    package: str
    base: str
    supplied: frozenset[str] = frozenset()


KINDS = {
    "method": Kind(
        "method",
        "methods",
        "methods.base.FedMethod",
        frozenset({"model", "make_model", "num_classes", "num_clients", "num_images", "image_shape"}),
    ),
    "data": Kind(
        "data set",
        "datamodules",
        "datamodules.base.FSSLDataModule",
        frozenset({"data_dir", "run_seed"}),
    ),
}


@dataclass(frozen=True)
class ClassSpec:
    """A class and its arguments.

    Args:
        class_path: short name (``digits``: the class in ``datamodules/digits.py``) or dotted path.
        init_args: arguments of its ``__init__`` by name.
    """

    class_path: str
    init_args: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Short name if the class is one of the suite's own, else the dotted path."""
        parts = self.class_path.split(".")
        own = len(parts) == 3 and parts[0] in {kind.package for kind in KINDS.values()}
        return parts[1] if own else self.class_path


def find_class(name: str, kind: Kind) -> type:
    """The class that ``name`` means: a module of the kind's package, or a dotted path.

    Raises:
        ConfigError: no such class, several, or not a subclass of the kind's base.
    """
    what, base = f"{kind.what} '{name}'", imported(kind.base)
    if "." in name:
        paths = [name]
    elif name in known_names(kind):
        module = importlib.import_module(f"{kind.package}.{name}")
        classes = [cls for cls in vars(module).values() if isinstance(cls, type) and issubclass(cls, base)]
        paths = [path_of(cls) for cls in classes if cls.__module__ == module.__name__]
    else:
        raise unknown(kind.what, name, known_names(kind), "; a dotted path such as my_package.mine.Mine works too")
    if len(paths) > 1:
        raise ConfigError(f"{what} is ambiguous; name one of {', '.join(paths)}")
    cls = _LOCAL.get(paths[0]) or plugin(paths[0], what)
    if not (isinstance(cls, type) and issubclass(cls, base)):
        raise ConfigError(f"{what} is not a subclass of {kind.base}")
    return cls


def known_names(kind: Kind) -> list[str]:
    """Short names of the classes in the kind's package, sorted: those of its modules, which have one class each."""
    modules = pkgutil.iter_modules(importlib.import_module(kind.package).__path__)
    return sorted({module.name for module in modules if not module.ispkg} - {kind.base.split(".")[1]})


_LOCAL: dict[str, type] = {}  # classes that cannot be imported, by dotted path


def path_of(cls: type) -> str:
    """The dotted path of a class."""
    return f"{cls.__module__}.{cls.__qualname__}"


def register_local(cls: type) -> str:
    """Let this process find a class under its dotted path even if it cannot be imported; returns the path.

    A class defined in a notebook cell or in a function gets its name this way. The last one of a name counts.
    """
    path = path_of(cls)
    _LOCAL.pop(path, None)
    if not is_importable(cls):
        _LOCAL[path] = cls
    return path


def is_importable(cls: type) -> bool:
    """Whether another process finds the class under its dotted path."""
    if not all(part.isidentifier() for part in path_of(cls).split(".")):
        return False  # defined in a function, or in a script that `runpy` runs
    with suppress(ImportError, AttributeError):
        return cls.__module__ != "__main__" and imported(path_of(cls)) is cls
    return False


def imported(path: str) -> Any:
    """What a dotted path names."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


@cache
def parameters(cls: type) -> Mapping[str, inspect.Parameter]:
    """Arguments of ``cls.__init__`` by name; where it hands others on (``**base``), those of its bases too."""
    known: dict[str, inspect.Parameter] = {}
    for init in (vars(base)["__init__"] for base in cls.__mro__ if "__init__" in vars(base)):
        try:
            hints = get_type_hints(init)
        except NameError:  # imported for type checkers alone
            hints = {}
        arguments = list(inspect.signature(init).parameters.values())[1:]
        for argument in arguments:
            if argument.kind in (argument.POSITIONAL_OR_KEYWORD, argument.KEYWORD_ONLY):
                known.setdefault(argument.name, argument.replace(annotation=hints.get(argument.name, Any)))
        if all(argument.kind is not argument.VAR_KEYWORD for argument in arguments):
            break
    return known


def _required(cls: type) -> set[str]:
    return {name for name, argument in parameters(cls).items() if argument.default is argument.empty}


def handed_over(cls: type, slot: str, given: Collection[str]) -> set[str]:
    """Arguments of ``cls`` that are the run's to supply: the kind's own, and those without default or given value."""
    return set(KINDS[slot].supplied) | (_required(cls) - set(given))


def build(spec: ClassSpec, slot: str, **supplied: Any) -> Any:
    """An instance of the spec's class; ``supplied`` are the arguments that the run itself hands over.

    Raises:
        ConfigError: an argument is missing, unknown or of the wrong type, or the constructor fails.
    """
    cls = find_class(spec.class_path, KINDS[slot])
    given = _without_retired(cls, spec.init_args)
    args = converted(cls, given, slot, handed_over(cls, slot, given))
    for name in sorted(_required(cls) - set(args) - set(supplied)):
        raise ConfigError(f"{slot} argument '{name}' of {cls.__name__} has no default: give --{slot}.{name}")
    try:
        return cls(**args, **supplied)
    except BenchError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {error} ({place(error)})"
        raise ConfigError(f"the {KINDS[slot].what} {cls.__name__} cannot be made: {why}") from error


def resolved(spec: ClassSpec, slot: str) -> ClassSpec:
    """A spec with the path of its class, and all arguments but those that a run hands over, as plain data.

    Paths are strings.

    Raises:
        ConfigError: unknown class or argument (with the closest known one), or a value of the wrong type.
    """
    cls = find_class(spec.class_path, KINDS[slot])
    given = _without_retired(cls, spec.init_args)
    skip = handed_over(cls, slot, given)
    left_out = skip | _required(cls)
    args = {name: argument.default for name, argument in parameters(cls).items() if name not in left_out}
    args |= converted(cls, given, slot, skip)
    return ClassSpec(path_of(cls), json.loads(json.dumps(args, default=str)))


def _without_retired(cls: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments without those that a class no longer has, if it always does what they say (``FedMethod.retired``)."""
    retired = [item for base in cls.__mro__ for item in vars(base).get("retired", {}).items()]
    return {name: value for name, value in given.items() if name in parameters(cls) or (name, value) not in retired}


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
    types = {name: argument.annotation for name, argument in parameters(cls).items() if name not in skip}
    args = {}
    for name, value in values.items():
        if name in skip and name in ELSEWHERE:
            raise ConfigError(f"unknown {where} argument '{name}': give {ELSEWHERE[name]} instead")
        if name not in types:
            raise unknown(f"{where} argument", name, sorted(types), f" ({cls.__name__})")
        try:
            args[name] = _converted(types[name], value)
        except (ValueError, TypeError):
            option = f"{where}.{name}" if where in (*KINDS, "roster") else name
            given = "null" if value is None else value
            expected = type_in_words(types[name])
            raise ConfigError(f"{where} ({cls.__name__}): --{option} {given}: expected {expected}") from None
    return args


def _converted(hint: Any, value: Any) -> Any:
    """A value in the type ``hint``; a text may also stand for what YAML reads in it.

    Raises:
        ValueError, TypeError: the type does not take it.
    """
    adapter = _adapter(hint)
    if isinstance(value, str):
        if hint is not Any and value != "null":
            with suppress(ValueError):
                return adapter.validate_json(json.dumps(value))
        value = read_value(value)
    return adapter.validate_json(json.dumps(value))


@cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(hint, config=ConfigDict(strict=True, allow_inf_nan=False))
    except PydanticUserError:  # a class of somebody's own
        return TypeAdapter(Any)


def type_in_words(hint: Any) -> str:
    """A type as the command line has it: ``float``, ``int or null``, ``a or b``."""
    if get_origin(hint) in (Literal, Union, UnionType):
        return " or ".join(map(type_in_words, get_args(hint)))
    if isinstance(hint, str):
        return hint
    return "null" if hint is NoneType else inspect.formatannotation(hint).replace("typing.", "")
