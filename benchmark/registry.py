"""Classes by name: how ``--method mine`` becomes a class, and its arguments checked values."""

import difflib
import gc
import importlib
import inspect
import json
import pkgutil
import re
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib.metadata import EntryPoint, entry_points
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from datamodules.common.errors import BenchError, ConfigError
from datamodules.common.plugins import place, plugin


@dataclass(frozen=True)
class Kind:
    """A family of classes that a configuration names: where they live and what the run itself hands them.

    Args:
        what: the family, for people.
        package: our own package, with one module per class.
        base: dotted path of the base class.
        group: group of the entry points with which other packages offer theirs.
        supplied: arguments that the run hands over.
    """

    what: str
    package: str
    base: str
    group: str
    supplied: frozenset[str] = frozenset()


KINDS = {
    "method": Kind(
        "method",
        "methods",
        "methods.base.FedMethod",
        "fssl_bench.methods",
        frozenset({"model", "num_classes", "num_clients", "num_images", "image_shape"}),
    ),
    "data": Kind(
        "data set",
        "datamodules",
        "datamodules.base.FSSLDataModule",
        "fssl_bench.datamodules",
        frozenset({"data_dir", "run_seed"}),
    ),
}


ELSEWHERE = {"model": "--model", "data_dir": "--data_dir", "run_seed": "--seed"}  # how a run is told what it hands over


@dataclass(frozen=True)
class Argument:
    """An argument for people: type and default as a command line has them, and what it means (may be empty)."""

    type: str
    default: str
    text: str


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
    """The class that ``name`` means: a module of the kind's package, an entry point, or a dotted path.

    Raises:
        ConfigError: no such class, or not a subclass of the kind's base.
    """
    if name in _GIVEN:
        return _checked(_GIVEN[name], f"{kind.what} '{name}'", kind)
    if "." in name:
        what = f"{kind.what} '{name}'"
        return _checked(plugin(name, what), what, kind)
    if name in _modules(kind):
        found = _defined(f"{kind.package}.{name}", imported(kind.base))
        if len(found) == 1:
            return found[0]
        paths = [path_of(cls) for cls in found]
    else:
        offered = list(entry_points(group=kind.group, name=name))
        if len(offered) == 1:
            return _loaded(offered[0], kind)
        paths = [point.value.replace(":", ".") for point in offered]
    if paths:
        raise ConfigError(f"{kind.what} '{name}' is ambiguous; name one of {', '.join(paths)}")
    raise unknown(kind.what, name, known_names(kind), "; a dotted path such as my_package.mine.Mine works too")


def own_names(kind: Kind) -> list[str]:
    """Short names of the classes in the kind's package, sorted."""
    base = imported(kind.base)
    return [name for name in _modules(kind) if _defined(f"{kind.package}.{name}", base)]


def known_names(kind: Kind) -> list[str]:
    """Short names of all classes of a kind, those of entry points among them, sorted.

    An entry point that cannot be used is left out with a warning.
    """
    names = set(own_names(kind))
    for point in entry_points(group=kind.group):
        if point.name in _modules(kind):
            path = point.value.replace(":", ".")
            warnings.warn(f"{_offer(point, kind)} has the name of one of ours; name it {path}", stacklevel=2)
            continue
        try:
            _loaded(point, kind)
        except ConfigError as error:
            warnings.warn(f"{error}; it is left out", stacklevel=2)
        else:
            names.add(point.name)
    return sorted(names)


def _loaded(point: EntryPoint, kind: Kind) -> type:
    """The class behind an entry point.

    Raises:
        ConfigError: it cannot be imported, or is not of the kind.
    """
    try:
        cls = point.load()
    except Exception as error:  # other people's code: anything may happen
        reason = one_line(f"{type(error).__name__}: {error}")
        raise ConfigError(f"{_offer(point, kind)} cannot be imported: {reason}") from error
    return _checked(cls, _offer(point, kind), kind)


def _offer(point: EntryPoint, kind: Kind) -> str:
    package = point.dist.name if point.dist else point.module
    return f"{kind.what} '{point.name}' of the package '{package}'"


def _checked(cls: object, asked: str, kind: Kind) -> type:
    """``cls``, if it is a class of the kind; ``asked`` says for people what was asked for."""
    if not (isinstance(cls, type) and issubclass(cls, imported(kind.base))):
        raise ConfigError(f"{asked} is not a subclass of {kind.base}")
    return cls


_GIVEN: dict[str, type] = {}


def path_of(cls: type) -> str:
    """The dotted path of a class."""
    return f"{cls.__module__}.{cls.__qualname__}"


def register_local(cls: type) -> str:
    """The dotted path of a class; this process finds the class under it even if it cannot be imported.

    That is how the classes of a notebook cell or of a function get a name. The latest of a name counts.
    """
    path = path_of(cls)
    _GIVEN.pop(path, None)
    if not is_importable(cls):
        _GIVEN[path] = cls
    return path


def is_importable(cls: type) -> bool:
    """Whether another process finds the class under its dotted path."""
    if not all(part.isidentifier() for part in path_of(cls).split(".")):
        return False  # of a function, or of a script that `runpy` runs
    try:
        return cls.__module__ != "__main__" and imported(path_of(cls)) is cls
    except (ImportError, AttributeError):
        return False


def build(spec: ClassSpec, slot: str, **supplied: Any) -> Any:
    """An instance of the spec's class; ``supplied`` are the arguments that the run itself hands over."""
    cls = find_class(spec.class_path, KINDS[slot])
    skip = handed_over(cls, KINDS[slot], spec.init_args) | set(supplied)
    for name in sorted(without_default(cls) - set(spec.init_args) - set(supplied)):
        network = slot == "method" and "model" not in inspect.signature(cls).parameters
        hint = "; if it is the network, call it `model`: a run hands it over under this name" if network else ""
        raise ConfigError(f"{slot} argument '{name}' of {cls.__name__} has no default: give --{slot}.{name}{hint}")
    args = typed_args(cls, spec.init_args, slot, skip, plain=False)
    try:
        return cls(**args, **supplied)
    except BenchError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {error} ({place(error)})"
        raise ConfigError(f"the {KINDS[slot].what} {cls.__name__} cannot be made: {why}") from error


def handed_over(cls: type, kind: Kind, given: Collection[str] = ()) -> set[str]:
    """Arguments of ``cls`` that are the run's to supply: the kind's own, and those without default or given value."""
    return set(kind.supplied | (without_default(cls) - set(given)))


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
    if not plain:
        return _parsed_args(cls, values, where, frozenset(skip))
    key = json.dumps(dict(values), default=str)
    if json.loads(key) == values:
        return dict(json.loads(_plain_args(cls, key, where, frozenset(skip))))
    return dict(json.loads(json.dumps(_parsed_args(cls, values, where, frozenset(skip)), default=str)))


@lru_cache(maxsize=4096)
def _plain_args(cls: type, values: str, where: str, skip: frozenset[str]) -> str:
    """``typed_args`` from and to JSON, remembered: a suite asks for the same arguments in hundreds of rows."""
    return json.dumps(_parsed_args(cls, json.loads(values), where, skip), default=str)


def _parsed_args(cls: type, values: Mapping[str, Any], where: str, skip: frozenset[str]) -> dict[str, Any]:
    import jsonargparse

    parser, names = _parser(cls, skip)
    for name in values:
        if name in skip and name in ELSEWHERE:
            raise ConfigError(f"unknown {where} argument '{name}': give {ELSEWHERE[name]} instead")
        if name not in names:
            raise unknown(f"{where} argument", name, sorted(names), f" ({cls.__name__})")
    try:
        parsed = parser.parse_object(dict(values))
    except jsonargparse.ArgumentError as error:
        raise ConfigError(f"{where} ({cls.__name__}): {explained(error, parser, where)}") from None
    args = dict(vars(parsed))
    for action in parser._actions:
        if action.dest in values and args[action.dest] is None and not _may_be_none(_hint(action)):
            option = f"{_prefix(where)}{action.dest}"
            raise ConfigError(f"{where} ({cls.__name__}): --{option} null: expected {written(_hint(action))}")
    return args


@cache
def _parser(cls: type, skip: frozenset[str]) -> tuple[Any, list[str]]:
    import jsonargparse

    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    return parser, list(parser.add_class_arguments(cls, skip=set(skip), fail_untyped=False))


def described(cls: type, slot: str) -> dict[str, Argument]:
    """The arguments of ``cls.__init__`` (bases included) that a configuration may give, by name.

    What one means is its line under ``Args:``, or else its rows in a table of hyperparameters, of ``cls`` or a base.
    """
    parser, names = _parser(cls, KINDS[slot].supplied)
    rows, required, found = _table_rows(cls), without_default(cls), {}
    for action in parser._actions:
        if action.dest in names:
            default = action.default if isinstance(action.default, str) else json.dumps(action.default, default=str)
            default = "required" if action.dest in required else f"default {default}"
            text = one_line(action.help or rows.get(action.dest, ""))
            found[action.dest] = Argument(written(_hint(action)), default, text)
    return found


def written(hint: Any) -> str:
    """A type as the command line has it: ``float``, ``int or null``, ``{a,b}``."""
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(map(written, get_args(hint)))
    if get_origin(hint) is Literal:
        choices = ",".join(map(str, get_args(hint)))
        return f"{{{choices}}}" if len(get_args(hint)) > 1 else choices
    if get_origin(hint) is None and isinstance(hint, type):
        return {NoneType: "null", bool: "{true,false}"}.get(hint, hint.__name__)
    return str(hint or "any").removeprefix("typing.")


def explained(error: object, parser: Any, where: str = "") -> str:
    """A message of jsonargparse in one line; for a value of the wrong type: option, value, and what is expected."""
    message = one_line(error)
    found = re.search(r'Parser key "(\w+)".* value: (.*?)$', message)
    action = next((action for action in parser._actions if found and action.dest == found[1]), None)
    if found is None or action is None or _hint(action) is None:
        return message
    given = "null" if found[2] == "None" else found[2]
    dashes = "--" if action.option_strings else ""  # none before what is told by its place
    return f"{dashes}{_prefix(where)}{found[1]} {given}: expected {written(_hint(action))}"


def _prefix(where: str) -> str:
    """What stands before an option's name on the command line."""
    return f"{where}." if where in (*KINDS, "roster") else ""


def _may_be_none(hint: Any) -> bool:
    """Whether a type has ``None`` among its values, as far as one knows it."""
    return hint in (None, Any, NoneType) or NoneType in get_args(hint) or None in get_args(hint)


def _hint(action: Any) -> Any:
    return getattr(action, "_typehint", None) or action.type


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


def imported(path: str) -> Any:
    """What a dotted path names."""
    module, _, name = path.rpartition(".")
    with _uncollected():
        return getattr(importlib.import_module(module), name)


@contextmanager
def _uncollected() -> Iterator[None]:
    """No garbage collection meanwhile: what modules make stays, and looking through all of it again and again takes a
    fifth of the time that importing Lightning does.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _modules(kind: Kind) -> list[str]:
    package = importlib.import_module(kind.package)
    return sorted(m.name for m in pkgutil.iter_modules(package.__path__) if not m.ispkg)


def _defined(module: str, base: type) -> list[type]:
    """Concrete subclasses of ``base`` that ``module`` defines itself, ``base`` excluded."""
    members = vars(importlib.import_module(module)).values()
    own = [m for m in members if isinstance(m, type) and m.__module__ == module]
    return [c for c in own if issubclass(c, base) and c is not base and not inspect.isabstract(c)]


def parameters(cls: type) -> dict[str, bool]:
    """Arguments of ``__init__`` (bases included), and whether each has to be given."""
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


def unknown(what: str, name: object, known: Iterable[str], more: str = "") -> ConfigError:
    """The error for a name that is not among ``known``: with the closest one, and the list."""
    known = list(known)
    close = difflib.get_close_matches(str(name).lower(), known, n=1, cutoff=0.5)
    hint = f"; did you mean '{close[0]}'?" if close else "."
    return ConfigError(f"unknown {what} '{name}'{hint} Known: {', '.join(known) or 'none'}{more}")


def one_line(error: object) -> str:
    """A message without line breaks."""
    return " ".join(str(error).split())
