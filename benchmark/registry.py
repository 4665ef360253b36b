"""Methods and data sets by name: which there are, and the class that a name or a dotted path means."""

import difflib
import importlib.util
import inspect
import pkgutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from datamodules.common.errors import ConfigError
from datamodules.common.plugins import plugin


@dataclass(frozen=True)
class Kind:
    """A family of classes that a configuration names: where they live, and what the run passes to them.

    Args:
        what: name of the family in messages.
        package: this project's package of them, with one module per class.
        base: dotted path of the base class.
        group: entry point group in which other packages register theirs.
        supplied: arguments that the run passes to the constructor.
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
    if name in _LOCAL:
        return _checked(_LOCAL[name], f"{kind.what} '{name}'", kind)
    if "." in name:
        what = f"{kind.what} '{name}'"
        return _checked(plugin(name, what), what, kind)
    if _is_module(name, kind):
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
    """Short names of all classes of a kind, those of other packages' entry points among them, sorted."""
    return sorted({*own_names(kind), *(point.name for point in entry_points(group=kind.group))})


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
    """``cls``, if it is a class of the kind; ``asked`` is what the message calls it."""
    if not (isinstance(cls, type) and issubclass(cls, imported(kind.base))):
        raise ConfigError(f"{asked} is not a subclass of {kind.base}")
    return cls


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
    try:
        return cls.__module__ != "__main__" and imported(path_of(cls)) is cls
    except (ImportError, AttributeError):
        return False


def imported(path: str) -> Any:
    """What a dotted path names."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def _modules(kind: Kind) -> list[str]:
    package = importlib.import_module(kind.package)
    return sorted(m.name for m in pkgutil.iter_modules(package.__path__) if not m.ispkg)


def _is_module(name: str, kind: Kind) -> bool:
    """Whether ``name`` is one of ``_modules``."""
    importlib.import_module(kind.package)
    spec = importlib.util.find_spec(f"{kind.package}.{name}") if name.isidentifier() else None
    return spec is not None and spec.submodule_search_locations is None


def _defined(module: str, base: type) -> list[type]:
    """Concrete subclasses of ``base`` that ``module`` defines itself, ``base`` excluded."""
    members = vars(importlib.import_module(module)).values()
    own = [m for m in members if isinstance(m, type) and m.__module__ == module]
    return [c for c in own if issubclass(c, base) and c is not base and not inspect.isabstract(c)]


def unknown(what: str, name: object, known: Iterable[str], more: str = "") -> ConfigError:
    """The error for a name that is not among ``known``; it suggests the closest one and lists all."""
    known = list(known)
    meant = {"alpha": "beta"} if "beta" in known else {}  # other papers' name of a Dirichlet concentration
    close = difflib.get_close_matches(meant.get(str(name), str(name).lower()), known, n=1, cutoff=0.5)
    hint = f"; did you mean '{close[0]}'?" if close else "."
    return ConfigError(f"unknown {what} '{name}'{hint} Known: {', '.join(known) or 'none'}{more}")


def one_line(error: object) -> str:
    """A message without line breaks."""
    return " ".join(str(error).split())
